"""Percentiles."""

from collections.abc import Sequence


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Linear interpolation between the two nearest ranks (Hyndman and Fan's type 7, numpy's default).

    `ordered` ascending; `percent` in [0, 100]. None for no values.
    """
    if not ordered:
        return None
    position = (len(ordered) - 1) * percent / 100.0
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
