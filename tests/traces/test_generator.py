"""Generated traces have the shape that was asked for, and the same one every time."""

import itertools
import statistics
from dataclasses import replace

import pytest

from prism.traces.format import TraceRequest
from prism.traces.generator import Bursts, Lengths, SyntheticModel, SyntheticTrace, generate
from prism.traces.stats import trace_stats
from prism.traces.writer import render_trace

THREE = tuple(SyntheticModel(name) for name in ("a", "b", "c"))
STEADY = SyntheticTrace(THREE, duration_s=2000.0, requests_per_s=5.0)


def of(requests: list[TraceRequest], model: str) -> list[TraceRequest]:
    return [request for request in requests if request.model == model]


def test_equal_seeds_give_equal_traces() -> None:
    assert render_trace(generate(STEADY)) == render_trace(generate(STEADY))
    assert generate(STEADY) != generate(replace(STEADY, seed=2))


def test_rates_follow_the_power_law() -> None:
    requests = generate(replace(STEADY, alpha=1.0))
    counts = [len(of(requests, name)) for name in "abc"]
    assert sum(counts) == pytest.approx(10_000, rel=0.05)
    assert counts[0] / counts[1] == pytest.approx(2.0, rel=0.1)
    assert counts[0] / counts[2] == pytest.approx(3.0, rel=0.15)


def test_given_shares_replace_the_power_law() -> None:
    models = (SyntheticModel("a", rate_share=3.0), SyntheticModel("b", rate_share=1.0))
    requests = generate(replace(STEADY, models=models))
    assert len(of(requests, "a")) / len(of(requests, "b")) == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_inter_arrival_variation(cv: float) -> None:
    arrivals = [r.arrival_s for r in generate(replace(STEADY, models=THREE[:1], cv=cv))]
    gaps = [b - a for a, b in itertools.pairwise(arrivals)]
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(cv, rel=0.15)


def test_alternating_bursts_leave_the_others_idle() -> None:
    bursts = Bursts("alternating", on_s=10.0, gap_s=2.0)
    requests = generate(replace(STEADY, duration_s=360.0, alpha=0.0, bursts=bursts))
    for request in requests:
        turn, into_s = divmod(request.arrival_s, 12.0)
        assert request.model == "abc"[int(turn) % 3]
        assert into_s <= 10.0
    assert len(requests) == pytest.approx(1800, rel=0.1)


def test_some_requests_may_ignore_the_bursts() -> None:
    bursts = Bursts("alternating", on_s=10.0, idle_share=0.2)
    requests = generate(replace(STEADY, alpha=0.0, bursts=bursts))
    outside = [r for r in requests if r.model != "abc"[int(r.arrival_s // 10) % 3]]
    assert len(outside) / len(requests) == pytest.approx(0.2 * 2 / 3, rel=0.15)


def test_random_bursts_keep_the_mean_rate() -> None:
    bursts = Bursts("random", on_s=5.0, gap_s=15.0)
    requests = generate(replace(STEADY, bursts=bursts))
    assert len(requests) == pytest.approx(10_000, rel=0.1)
    arrivals = [r.arrival_s for r in of(requests, "a")]
    assert max(b - a for a, b in itertools.pairwise(arrivals)) > 15.0


def test_lengths_are_lognormal_and_cut() -> None:
    model = SyntheticModel("a", prompt=Lengths(100, 1.0, 400), output=Lengths(20, 0.0, 50))
    requests = generate(replace(STEADY, models=(model,)))
    prompts = [r.prompt_tokens for r in requests]
    assert statistics.median(prompts) == pytest.approx(100, rel=0.05)
    assert max(prompts) == 400
    assert min(prompts) >= 1
    assert {r.output_tokens for r in requests} == {20}


def test_arrivals_are_in_order_and_inside() -> None:
    requests = generate(replace(STEADY, bursts=Bursts("random", 3.0, 3.0)))
    arrivals = [r.arrival_s for r in requests]
    assert arrivals == sorted(arrivals)
    assert 0.0 <= arrivals[0] <= arrivals[-1] < 2000.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": ()},
        {"models": (THREE[0], THREE[0])},
        {"duration_s": 0.0},
        {"requests_per_s": float("inf")},
        {"cv": 0.0},
        {"duration_s": 1e9},
        {"bursts": Bursts("random", on_s=0.0)},
    ],
)
def test_impossible_specifications(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is required"):
        replace(STEADY, **wrong)  # type: ignore[arg-type]


def test_statistics() -> None:
    requests = [TraceRequest(float(i), "a", 10 * (i + 1), 5) for i in range(5)] + [
        TraceRequest(8.0, "b", 7, 9)
    ]
    stats = trace_stats(requests)
    assert stats["span_s"] == 8.0
    models = stats["models"]
    assert isinstance(models, dict)
    assert list(models) == ["a", "b"]
    assert models["a"]["requests"] == 5
    assert models["a"]["gap_p50_s"] == 1.0
    assert models["a"]["gap_cv"] == 0.0
    assert models["a"]["prompt_tokens_p50"] == 30
    assert models["b"]["gap_cv"] is None
