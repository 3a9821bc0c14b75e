"""Figures over paired measurements."""

import random
import statistics
from collections.abc import Sequence

_RESAMPLES = 10_000
_SEED = 12345


def bootstrap_median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The two-sided bootstrap interval for the median, by percentiles of resampled medians.

    Raises ValueError without values.
    """
    if not values:
        raise ValueError("no values to resample: measure at least one pair")
    source = random.Random(_SEED)
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    cut = int((1.0 - confidence) / 2.0 * _RESAMPLES)
    return medians[cut], medians[-1 - cut]
