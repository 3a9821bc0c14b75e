"""What a trace looks like: per model and in all."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from prism.report.percentile import percentile
from prism.traces.format import TraceRequest


@dataclass(frozen=True, slots=True)
class TraceStats:
    """Figures of one model or of the whole trace. None where a figure needs more requests than there are.

    `gap_cv`: coefficient of variation of inter-arrival times. `minute_cv`: of requests per minute.
    `longest_gap_s`: between neighbouring arrivals.
    """

    requests: int
    requests_per_s: float
    gap_p50_s: float | None
    longest_gap_s: float | None
    gap_cv: float | None
    minute_cv: float | None
    prompt_tokens_p50: float
    prompt_tokens_p95: float
    output_tokens_p50: float
    output_tokens_p95: float


def trace_stats(requests: Sequence[TraceRequest]) -> dict[str, object]:
    """`{"span_s", "total": {...}, "models": {name: {...}}}`, models by number of requests, most first."""
    span_s = requests[-1].arrival_s - requests[0].arrival_s if requests else 0.0
    by_model: dict[str, list[TraceRequest]] = {}
    for request in requests:
        by_model.setdefault(request.model, []).append(request)
    ordered = sorted(by_model.items(), key=lambda item: (-len(item[1]), item[0]))
    start_s = requests[0].arrival_s if requests else 0.0
    return {
        "span_s": span_s,
        "total": asdict(_stats(requests, start_s, span_s)) if requests else None,
        "models": {name: asdict(_stats(rows, start_s, span_s)) for name, rows in ordered},
    }


def _stats(requests: Sequence[TraceRequest], start_s: float, span_s: float) -> TraceStats:
    arrivals = [request.arrival_s - start_s for request in requests]
    gaps = [b - a for a, b in pairwise(arrivals)]
    minutes = [0.0] * (int(span_s // 60) + 1)
    for arrival_s in arrivals:
        minutes[int(arrival_s // 60)] += 1
    prompts = sorted(float(request.prompt_tokens) for request in requests)
    outputs = sorted(float(request.output_tokens) for request in requests)
    return TraceStats(
        requests=len(requests),
        requests_per_s=len(requests) / span_s if span_s > 0 else 0.0,
        gap_p50_s=percentile(sorted(gaps), 50),
        longest_gap_s=max(gaps, default=None),
        gap_cv=_cv(gaps),
        minute_cv=_cv(minutes),
        prompt_tokens_p50=percentile(prompts, 50) or 0.0,
        prompt_tokens_p95=percentile(prompts, 95) or 0.0,
        output_tokens_p50=percentile(outputs, 50) or 0.0,
        output_tokens_p95=percentile(outputs, 95) or 0.0,
    )


def _cv(values: Sequence[float]) -> float | None:
    mean = statistics.fmean(values) if values else 0.0
    return statistics.pstdev(values) / mean if len(values) > 1 and mean > 0 else None
