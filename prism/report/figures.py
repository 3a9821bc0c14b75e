"""Figures per model and in all.

Percentiles are over served requests; attainment is over all arrivals, so that failing a request never looks
better than serving it late.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from prism.report.outcome import RequestOutcome, Slo
from prism.report.percentile import percentile


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one model or all. Times in seconds, None where no request has one; attainment in [0, 1].

    `output_tokens_per_s` is over the time from the first arrival to the last end of the whole run.
    """

    requests: int
    ok: int
    failed: int
    refused: int
    timeout: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p95_s: float | None
    attainment_ttft: float | None
    attainment_tpot: float | None
    attainment_joint: float | None
    output_tokens: int
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of a run; `slos` are those the attainment was measured against."""

    span_s: float
    total: Figures
    models: dict[str, Figures]
    slos: dict[str, Slo]

    def to_dict(self) -> dict[str, object]:
        """`{"span_s", "total", "models": {name: {..., "slo": {...}}}}`, ready for JSON."""
        return {
            "span_s": self.span_s,
            "total": asdict(self.total),
            "models": {
                name: {**asdict(figures), "slo": asdict(self.slos[name])}
                for name, figures in self.models.items()
            },
        }


def make_report(outcomes: Iterable[RequestOutcome], slos: Mapping[str, Slo]) -> Report:
    """Figures of a run. Models appear in the order of `slos`; raises ValueError for a model without one."""
    everything = list(outcomes)
    by_model: dict[str, list[RequestOutcome]] = {name: [] for name in slos}
    for outcome in everything:
        if outcome.model not in by_model:
            raise ValueError(f"request {outcome.request_id}: model {outcome.model!r} has no SLO")
        by_model[outcome.model].append(outcome)
    span_s = _span_s(everything)
    return Report(
        span_s=span_s,
        total=_figures(everything, slos, span_s),
        models={name: _figures(rows, slos, span_s) for name, rows in by_model.items()},
        slos=dict(slos),
    )


def _span_s(outcomes: Sequence[RequestOutcome]) -> float:
    if not outcomes:
        return 0.0
    start_s = min(outcome.arrival_s for outcome in outcomes)
    end_s = max(outcome.arrival_s if outcome.end_s is None else outcome.end_s for outcome in outcomes)
    return end_s - start_s


def _figures(outcomes: Sequence[RequestOutcome], slos: Mapping[str, Slo], span_s: float) -> Figures:
    ttft = sorted(o.ttft_s for o in outcomes if o.ttft_s is not None)
    tpot = sorted(o.tpot_s for o in outcomes if o.tpot_s is not None)
    met = [(o.meets_ttft(slos[o.model]), o.meets_tpot(slos[o.model])) for o in outcomes]
    statuses = [outcome.status for outcome in outcomes]
    tokens = sum(outcome.output_tokens for outcome in outcomes)
    return Figures(
        requests=len(outcomes),
        ok=statuses.count("ok"),
        failed=statuses.count("failed"),
        refused=statuses.count("refused"),
        timeout=statuses.count("timeout"),
        ttft_p50_s=percentile(ttft, 50),
        ttft_p95_s=percentile(ttft, 95),
        ttft_p99_s=percentile(ttft, 99),
        tpot_p50_s=percentile(tpot, 50),
        tpot_p95_s=percentile(tpot, 95),
        attainment_ttft=_share([in_time for in_time, _ in met]),
        attainment_tpot=_share([fast for _, fast in met]),
        attainment_joint=_share([in_time and fast for in_time, fast in met]),
        output_tokens=tokens,
        output_tokens_per_s=tokens / span_s if span_s > 0 else 0.0,
    )


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None
