"""Rates of the metrics window."""

import pytest

from prism.core.rates import RateWindow


def test_rates_over_the_window() -> None:
    window = RateWindow(10.0)
    for second in range(20):
        window.arrived("m", 100, float(second))
        window.decoded("m", 5, float(second))
    (load,) = window.loads(19.5)
    assert load.model == "m"
    assert load.requests_per_s == pytest.approx(1.0, rel=0.11)
    assert load.prompt_tokens_per_s == pytest.approx(100 * load.requests_per_s)
    assert load.decode_tokens_per_s == pytest.approx(5 * load.requests_per_s)


def test_an_idle_model_leaves_the_window() -> None:
    window = RateWindow(10.0)
    window.arrived("m", 1, 0.0)
    assert window.loads(5.0)
    assert window.loads(10.5) == ()


def test_a_young_window_divides_by_its_age() -> None:
    window = RateWindow(60.0)
    for tenth in range(100):
        window.arrived("m", 1, tenth / 10)
    (load,) = window.loads(10.0)
    assert load.requests_per_s == pytest.approx(10.0)


def test_models_are_sorted() -> None:
    window = RateWindow(10.0)
    for model in ("b", "a", "c"):
        window.arrived(model, 1, 0.0)
    assert [load.model for load in window.loads(0.0)] == ["a", "b", "c"]
