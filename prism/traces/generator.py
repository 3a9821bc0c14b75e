"""Synthetic traces: power-law rates over models, gamma inter-arrival times, on/off bursts, lognormal lengths.

Arrivals of a model are a renewal process in the time its burst is on, mapped onto the clock, so that bursts
change when requests come and not how many. Equal specifications and seeds give equal traces; each model draws
from a stream of its own, so that adding a model leaves the others as they were.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

from prism.traces.format import TraceRequest

BurstKind = Literal["none", "alternating", "random"]
MAX_REQUESTS = 5_000_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal token counts: half are below `median`; `sigma` spreads the logarithm; cut to [1, max]."""

    median: int
    sigma: float
    max: int


@dataclass(frozen=True, slots=True)
class SyntheticModel:
    """One model. `rate_share` overrides its share by power law; shares are scaled to sum to one."""

    name: str
    prompt: Lengths = Lengths(128, 0.8, 1024)
    output: Lengths = Lengths(64, 0.7, 512)
    rate_share: float | None = None


@dataclass(frozen=True, slots=True)
class Bursts:
    """When models ask at all.

    none: always. alternating: the models take turns of `on_s`, each followed by `gap_s` in which nobody asks;
    so one bursts while the others idle. random: each model by itself, on and off for exponential times of
    these means. `idle_share` of a model's requests ignore its bursts and come evenly over the trace.
    """

    kind: BurstKind = "none"
    on_s: float = 10.0
    gap_s: float = 0.0
    idle_share: float = 0.0


@dataclass(frozen=True, slots=True)
class SyntheticTrace:
    """What to generate. Rates follow rank^-alpha; `cv` is that of inter-arrival times (std over mean)."""

    models: tuple[SyntheticModel, ...]
    duration_s: float
    requests_per_s: float
    alpha: float = 1.0
    cv: float = 1.0
    bursts: Bursts = Bursts()
    seed: int = 1

    def __post_init__(self) -> None:
        """Raise ValueError naming the first value that makes no trace."""
        checks = {
            "models (at least one)": bool(self.models),
            f"duration_s {self.duration_s} (more than 0)": 0 < self.duration_s < math.inf,
            f"requests_per_s {self.requests_per_s} (more than 0)": 0 < self.requests_per_s < math.inf,
            f"alpha {self.alpha} (0 or more)": 0 <= self.alpha < math.inf,
            f"cv {self.cv} (more than 0)": 0 < self.cv < math.inf,
            f"bursts.on_s {self.bursts.on_s} (more than 0)": 0 < self.bursts.on_s < math.inf,
            f"bursts.gap_s {self.bursts.gap_s} (0 or more)": 0 <= self.bursts.gap_s < math.inf,
            f"bursts.idle_share {self.bursts.idle_share} (0 to 1)": 0 <= self.bursts.idle_share <= 1,
            f"model names {[m.name for m in self.models]} (distinct)": len({m.name for m in self.models})
            == len(self.models),
            f"{self.duration_s * self.requests_per_s:.0f} requests (at most {MAX_REQUESTS})": self.duration_s
            * self.requests_per_s
            <= MAX_REQUESTS,
        }
        for what, holds in checks.items():
            if not holds:
                raise ValueError(f"synthetic trace: {what} is required")


def generate(spec: SyntheticTrace) -> list[TraceRequest]:
    """The trace, in order of arrival; ties by order of models. Arrivals are rounded to microseconds."""
    shares = _shares(spec)
    rows: list[tuple[float, int, TraceRequest]] = []
    for index, model in enumerate(spec.models):
        rng = Random(f"{spec.seed}/{model.name}")  # noqa: S311 (a reproducible trace, no secret)
        rate = spec.requests_per_s * shares[index]
        steady = spec.bursts.idle_share if spec.bursts.kind != "none" else 1.0
        intervals = _on_intervals(spec, index, rng)
        arrivals = [
            *_arrivals(rng, rate * steady, spec.cv, [(0.0, spec.duration_s)], spec.duration_s),
            *_arrivals(rng, rate * (1.0 - steady), spec.cv, intervals, spec.duration_s),
        ]
        for arrival_s in sorted(arrivals):
            request = TraceRequest(
                round(arrival_s, 6), model.name, _length(rng, model.prompt), _length(rng, model.output)
            )
            rows.append((request.arrival_s, index, request))
    return [request for _, _, request in sorted(rows, key=lambda row: row[:2])]


def _shares(spec: SyntheticTrace) -> list[float]:
    raw = [
        (rank**-spec.alpha if model.rate_share is None else model.rate_share)
        for rank, model in enumerate(spec.models, start=1)
    ]
    return [share / sum(raw) for share in raw]


def _on_intervals(spec: SyntheticTrace, index: int, rng: Random) -> list[tuple[float, float]]:
    """[start, end) times at which the model's burst is on, within the trace."""
    bursts, end_s = spec.bursts, spec.duration_s
    if bursts.kind == "none":
        return [(0.0, end_s)]
    intervals: list[tuple[float, float]] = []
    if bursts.kind == "alternating":
        turn_s = bursts.on_s + bursts.gap_s
        start_s = index * turn_s
        while start_s < end_s:
            intervals.append((start_s, min(end_s, start_s + bursts.on_s)))
            start_s += turn_s * len(spec.models)
        return intervals
    start_s = rng.uniform(0.0, bursts.on_s + bursts.gap_s)
    while start_s < end_s:
        on_end_s = start_s + rng.expovariate(1.0 / bursts.on_s)
        intervals.append((start_s, min(end_s, on_end_s)))
        start_s = on_end_s + (rng.expovariate(1.0 / bursts.gap_s) if bursts.gap_s else 0.0)
    return intervals


def _arrivals(
    rng: Random, rate_per_s: float, cv: float, intervals: list[tuple[float, float]], duration_s: float
) -> Iterator[float]:
    """A gamma renewal process of mean `rate_per_s` over the whole trace, all of it inside the intervals."""
    on_s = sum(end - start for start, end in intervals)
    if rate_per_s <= 0.0 or on_s <= 0.0:
        return
    starts_on_s = [0.0]  # time spent on before each interval
    for start, end in intervals:
        starts_on_s.append(starts_on_s[-1] + end - start)
    shape = 1.0 / (cv * cv)
    scale = on_s / (rate_per_s * duration_s) / shape
    spent_s = rng.gammavariate(shape, scale) * rng.random()  # the process was running before the trace began
    while spent_s < on_s:
        which = min(bisect_right(starts_on_s, spent_s) - 1, len(intervals) - 1)
        yield intervals[which][0] + spent_s - starts_on_s[which]
        spent_s += rng.gammavariate(shape, scale)


def _length(rng: Random, lengths: Lengths) -> int:
    return max(1, min(lengths.max, round(rng.lognormvariate(math.log(lengths.median), lengths.sigma))))
