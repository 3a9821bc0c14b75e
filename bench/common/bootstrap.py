"""Figures over paired measurements."""

import random
import statistics
from collections.abc import Sequence

_RESAMPLES = 10_000
_SEED = 12345


def bootstrap_median_interval(
    groups: Sequence[Sequence[float]], confidence: float = 0.95
) -> tuple[float, float]:
    """The two-stage bootstrap interval for the median of all values, by percentiles of resampled medians.

    Values of one group (one start of a process, say) have something in common that differs between groups, so
    groups are drawn first and then values within each. Raises ValueError where there is no value.
    """
    if not groups or not all(groups):
        raise ValueError("no values to resample: measure at least one pair in each group")
    source = random.Random(_SEED)
    medians = sorted(_resampled_median(source, groups) for _ in range(_RESAMPLES))
    cut = int((1.0 - confidence) / 2.0 * _RESAMPLES)
    return medians[cut], medians[-1 - cut]


def _resampled_median(source: random.Random, groups: Sequence[Sequence[float]]) -> float:
    drawn = source.choices(groups, k=len(groups))
    return statistics.median([value for group in drawn for value in source.choices(group, k=len(group))])
