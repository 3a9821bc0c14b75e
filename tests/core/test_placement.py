"""KVPR and the placement by it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.core.config import DeviceSpec, PlacedModel
from prism.core.events import ModelLoad
from prism.core.kvpr import kvpr, weighted_rate
from prism.core.placement import DeviceLoad, best_move, place


def model(name: str, **more: object) -> PlacedModel:
    return PlacedModel(name, kv_bytes_per_token=8, ttft_slo_s=0.5, tpot_slo_s=0.1, **more)  # type: ignore[arg-type]


def devices(*budgets: int) -> dict[str, DeviceLoad]:
    return {f"d{i}": DeviceLoad(DeviceSpec(f"d{i}", budget), i) for i, budget in enumerate(budgets)}


def test_weighted_rates() -> None:
    load = ModelLoad("m", requests_per_s=3.0, prompt_tokens_per_s=100.0, decode_tokens_per_s=50.0)
    assert weighted_rate(model("m"), load, "v1") == pytest.approx(6.0)
    assert weighted_rate(model("m"), load, "v3") == pytest.approx(150 * 8 / 0.1)
    assert weighted_rate(model("m", tp=2), load, "v3") == pytest.approx(150 * 4 / 0.1)
    assert weighted_rate(model("m"), None, "v1") == 0.0


def test_kvpr() -> None:
    assert kvpr(6.0, 3) == 2.0
    assert kvpr(0.0, 0) == math.inf


def test_heaviest_first_each_to_the_least_pressure() -> None:
    placement = place([model(n) for n in "abcd"], {"a": 1.0, "b": 5.0, "c": 4.0, "d": 2.0}, devices(100, 100))
    # b -> d0 (tie, first), c -> d1, d -> d1 (4+2 < 5+2), a -> d0 (5+1 < 6+1)
    assert placement.assigned == {"b": ("d0",), "c": ("d1",), "d": ("d1",), "a": ("d0",)}


def test_pressure_counts_the_bytes_left_after_weights() -> None:
    loads = devices(100, 400)
    assert place([model("a")], {"a": 1.0}, loads).assigned == {"a": ("d1",)}
    heavy = model("b", weight_bytes=390)
    assert place([heavy], {"b": 1.0}, loads).assigned == {"b": ("d1",)}
    assert place([model("c")], {"c": 1.0}, loads).assigned == {"c": ("d0",)}


def test_without_traffic_models_spread_by_memory() -> None:
    placement = place([model(n, floor_bytes=30) for n in "abcd"], {}, devices(100, 100))
    assert [placement.assigned[n][0] for n in "abcd"] == ["d0", "d1", "d0", "d1"]


def test_floors_bound_what_a_device_takes() -> None:
    placement = place([model(n, floor_bytes=60) for n in "abc"], {"a": 9.0}, devices(100, 100))
    assert set(placement.assigned) == {"a", "b"}
    assert "lacks 20 bytes" in placement.unplaced["c"]
    assert "120 would hold it" in placement.unplaced["c"]


def test_pinned_models_stay_where_they_are_told() -> None:
    assert place([model("a", device="d1")], {"a": 1.0}, devices(900, 10)).assigned == {"a": ("d1",)}
    assert "'d7' is not available" in place([model("a", device="d7")], {}, devices(10)).unplaced["a"]


def test_tensor_parallel_ranks_go_to_distinct_devices() -> None:
    wide = model("a", tp=2, floor_bytes=100)
    assert place([wide], {"a": 1.0}, devices(60, 10, 60)).assigned == {"a": ("d0", "d2")}
    assert "needs 2 devices" in place([wide], {}, devices(900)).unplaced["a"]


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50), st.integers(0, 50)), max_size=12),
    st.lists(st.integers(1, 150), min_size=1, max_size=4),
)
def test_no_device_is_ever_overfilled(rows: list[tuple[float, int, int]], budgets: list[int]) -> None:
    models = [model(f"m{i}", floor_bytes=f, weight_bytes=w) for i, (_, f, w) in enumerate(rows)]
    loads = devices(*budgets)
    placement = place(models, {f"m{i}": rate for i, (rate, _, _) in enumerate(rows)}, loads)
    assert set(placement.assigned) | set(placement.unplaced) == {m.name for m in models}
    assert not set(placement.assigned) & set(placement.unplaced)
    for name, load in loads.items():
        here = [m for m in models if placement.assigned.get(m.name) == (name,)]
        assert sum(m.floor_bytes + m.weight_bytes for m in here) <= load.spec.budget_bytes
    for name in placement.unplaced:
        left_out = next(m for m in models if m.name == name)
        assert all(load.short_bytes(left_out) > 0 for load in loads.values())


def test_the_best_single_move() -> None:
    loads = devices(100, 100)
    a, b, c = model("a"), model("b"), model("c")
    rates = {"a": 5.0, "b": 3.0, "c": 1.0}
    for m in (a, b, c):
        loads["d0"].put(m, rates[m.name])
    assert best_move([a, b, c], rates, loads, threshold=0.1) == ("a", "d1")  # 9 -> max(4, 5)
    assert best_move([c], rates, loads, threshold=0.2) is None  # 9 -> 8 is not worth it
    assert best_move([c], rates, loads, threshold=0.1) == ("c", "d1")
    assert loads["d0"].kvpr() == pytest.approx(0.09)
