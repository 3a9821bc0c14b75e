"""Did memory move between the models? A pure check of what was sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PEAK_SHARE_OF_BUDGET = 1 / 3
FALLEN_SHARE_OF_PEAK = 1 / 5


@dataclass(frozen=True, slots=True)
class MemorySeries:
    """Mapped KV bytes per model, sampled together: `mapped_bytes[model][i]` belongs to `times_s[i]`.

    `torn[i]`: memory moved while sample i was taken, so its sum may count some of it twice. Each model's own
    figure is right all the same. Empty: none is torn.
    """

    times_s: Sequence[float]
    mapped_bytes: Mapping[str, Sequence[int]]
    torn: Sequence[bool] = ()

    @property
    def torn_samples(self) -> int:
        """How many samples are torn."""
        return sum(self.torn)

    def whole(self) -> MemorySeries:
        """The samples that are not torn: only their sums prove anything."""
        if not self.torn_samples:
            return self
        kept = [index for index, torn in enumerate(self.torn) if not torn]
        return MemorySeries(
            tuple(self.times_s[index] for index in kept),
            {name: tuple(values[index] for index in kept) for name, values in self.mapped_bytes.items()},
        )

    def totals(self) -> list[int]:
        """Bytes of all models together, per sample."""
        return [sum(values) for values in zip(*self.mapped_bytes.values(), strict=True)]

    def peaks(self) -> dict[str, int]:
        """Largest sample of each model."""
        return {name: max(values, default=0) for name, values in self.mapped_bytes.items()}


def find_problems(series: MemorySeries, budget_bytes: int) -> list[str]:
    """What contradicts the claim that the models shared the budget; empty when nothing does.

    Each model must exceed a third of the budget at some time, and later fall below a fifth of its own
    peak while another model's mapped bytes rise. Nobody may ever see more mapped than the budget; a torn
    sample proves no overrun, but when more than half are torn one could hide among them.
    """
    if not series.times_s or not series.mapped_bytes:
        return ["nothing was sampled"]
    problems = []
    if 2 * series.torn_samples > len(series.times_s):
        problems.append(
            f"{series.torn_samples} of {len(series.times_s)} samples are torn (memory moved while they were "
            "taken): too few are left to tell whether the budget was kept"
        )
    whole = series.whole()
    peak = max(whole.totals(), default=0)
    if peak > budget_bytes:
        at_s = whole.times_s[whole.totals().index(peak)]
        problems.append(
            f"{peak} bytes were mapped at {at_s:.1f} s, "
            f"{peak - budget_bytes} over the budget of {budget_bytes}"
        )
    for name, values in series.mapped_bytes.items():
        problem = _stuck(name, values, series, budget_bytes)
        if problem is not None:
            problems.append(problem)
    return problems


def _stuck(name: str, values: Sequence[int], series: MemorySeries, budget_bytes: int) -> str | None:
    """Why this model's memory did not come and go, or None."""
    peak = max(values)
    third = budget_bytes * PEAK_SHARE_OF_BUDGET
    if peak <= third:
        return (
            f"{name}: mapped bytes never exceeded a third of the budget (peak {peak}, a third is {third:.0f})"
        )
    floor = peak * FALLEN_SHARE_OF_PEAK
    fell = False
    high = -1  # the last sample above a third of the budget, before the fall
    for index, value in enumerate(values):
        if value > third:
            high = index
        elif high >= 0 and value < floor:
            fell = True
            if _another_rose(name, series, high, index):
                return None
    if not fell:
        lowest = min(values[list(values).index(peak) :])
        return (
            f"{name}: mapped bytes never fell below a fifth of their peak {peak} afterwards (lowest {lowest})"
        )
    return (
        f"{name}: mapped bytes fell below a fifth of their peak {peak}, but no other model's rose meanwhile"
    )


def _another_rose(name: str, series: MemorySeries, start: int, end: int) -> bool:
    """Whether another model has more mapped at sample `end` than at `start`."""
    others = (values for other, values in series.mapped_bytes.items() if other != name)
    return any(values[end] > values[start] for values in others)
