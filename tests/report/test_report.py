"""Figures against numbers worked out by hand, percentiles against numpy."""

import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from prism.report import RequestOutcome, Slo, Status, make_report, percentile, report_table

SLO = Slo(ttft_s=1.0, tpot_s=0.1)


def outcome(
    model: str = "m",
    arrival_s: float = 0.0,
    first_token_s: float | None = 0.5,
    end_s: float | None = 1.5,
    tokens: int = 11,
    status: Status = "ok",
) -> RequestOutcome:
    return RequestOutcome("r", model, arrival_s, first_token_s, end_s, 10, tokens, status)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 100))
def test_percentile_is_numpys(values: list[float], percent: float) -> None:
    assert percentile(sorted(values), percent) == pytest.approx(
        float(np.percentile(values, percent)), abs=1e-6
    )


def test_percentile_of_nothing() -> None:
    assert percentile([], 50) is None


def test_latencies() -> None:
    assert outcome().ttft_s == 0.5
    assert outcome().tpot_s == pytest.approx(0.1)
    assert outcome(tokens=1).tpot_s is None
    assert outcome(first_token_s=None, tokens=0).ttft_s == 1.5  # an empty answer
    assert outcome(status="timeout").ttft_s is None


def test_attainment_is_over_all_arrivals() -> None:
    outcomes = [
        outcome(),  # meets both
        outcome(first_token_s=1.1, end_s=1.2),  # TTFT too late, TPOT met
        outcome(end_s=9.0),  # TTFT met, TPOT too slow
        outcome(tokens=1),  # one token has no TPOT to miss
        outcome(status="failed"),
        outcome(status="refused", first_token_s=None, tokens=0),
        outcome(status="timeout"),
        outcome(status="timeout"),
    ]
    total = make_report(outcomes, {"m": SLO}).total
    assert (total.requests, total.ok, total.failed, total.refused, total.timeout) == (8, 4, 1, 1, 2)
    assert total.attainment_ttft == 3 / 8
    assert total.attainment_tpot == 3 / 8
    assert total.attainment_joint == 2 / 8


def test_each_model_has_its_own_objectives_and_rows() -> None:
    slos = {"a": Slo(0.4, 0.1), "b": SLO, "idle": SLO}
    report = make_report([outcome("a"), outcome("b", arrival_s=0.25)], slos)
    assert list(report.models) == ["a", "b", "idle"]
    assert report.models["a"].attainment_ttft == 0.0
    assert report.models["b"].attainment_ttft == 1.0
    assert report.models["idle"].attainment_joint is None
    assert report.models["idle"].ttft_p50_s is None
    assert report.span_s == 1.5
    assert report.total.output_tokens_per_s == pytest.approx(22 / 1.5)


def test_a_model_without_objectives_is_an_error() -> None:
    with pytest.raises(ValueError, match="'zebra' has no SLO"):
        make_report([outcome("zebra")], {"m": SLO})


@pytest.mark.parametrize(("ttft_s", "tpot_s"), [(0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0)])
def test_impossible_objectives(ttft_s: float, tpot_s: float) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        Slo(ttft_s, tpot_s)


def test_json_and_table() -> None:
    report = make_report([outcome("a"), outcome("b", status="failed")], {"a": SLO, "b": SLO})
    data = json.loads(json.dumps(report.to_dict()))
    assert data["models"]["a"]["slo"] == {"ttft_s": 1.0, "tpot_s": 0.1}
    assert data["total"]["attainment_joint"] == 0.5
    out = io.StringIO()
    Console(file=out, width=80).print(report_table(report, "run"))
    text = out.getvalue()
    assert "50.0" in text
    assert "500" in text
    assert "…" not in text


def test_attainment_is_never_rounded_up_to_all() -> None:
    report = make_report([*[outcome()] * 9999, outcome(status="failed")], {"m": SLO})
    out = io.StringIO()
    Console(file=out, width=80).print(report_table(report, "run"))
    assert "99.9 99.9 99.9" in out.getvalue()


def test_an_empty_run() -> None:
    report = make_report([], {"m": SLO})
    assert report.total.requests == 0
    assert report.total.output_tokens_per_s == 0.0
