"""The simulated engine and its budget, iteration by iteration."""

from prism.sim.budget import Budget
from prism.sim.engine import SimEngine, SimRequest
from prism.sim.profile import EngineProfile
from prism.sim.setup import SimModel

PROFILE = EngineProfile(
    base_s=1.0, prefill_s_per_token=0.01, decode_s_per_request=0.1, chunk_tokens=100, page_rows=10
)


def engine(budget_rows: int = 1000, floor_rows: int = 0, max_running: int = 8) -> SimEngine:
    budget = Budget(budget_rows)
    budget.register("e", floor_rows, None)
    return SimEngine("e", SimModel("m", 1000, max_running), PROFILE, budget, row_bytes=1)


def test_a_prompt_is_prefilled_in_chunks_then_decoded() -> None:
    one = engine()
    one.submit(SimRequest("r", 150, 3))
    assert one.begin() == 1.0 + 1.0
    (progress,) = one.end()
    assert (progress.request.cached, progress.first_token, progress.finished) == (100, False, False)
    assert one.begin() == 1.0 + 0.5
    assert one.end()[0].first_token
    assert one.begin() == 1.0 + 0.1
    assert not one.end()[0].finished
    one.begin()
    assert one.end()[0].finished
    assert not one.busy
    assert one.begin() is None


def test_decoding_and_prefill_share_an_iteration() -> None:
    one = engine()
    one.submit(SimRequest("r", 50, 5))
    one.begin()
    one.end()
    one.submit(SimRequest("s", 50, 5))
    assert one.begin() == 1.0 + 0.5 + 0.1
    assert [p.request.request_id for p in one.end()] == ["s", "r"]


def test_memory_follows_the_load() -> None:
    budget = Budget(1000)
    budget.register("e", 0, None)
    one = SimEngine("e", SimModel("m", 1000, 8), PROFILE, budget, row_bytes=1)
    one.submit(SimRequest("r", 95, 2))
    one.begin()
    assert budget.used_bytes() == 100
    one.end()
    one.begin()
    one.end()
    assert budget.used_bytes() == 0
    assert budget.peak_bytes == 100


def test_the_youngest_is_retracted_and_ends_all_the_same() -> None:
    one = engine(budget_rows=120)
    for request_id in ("old", "young"):
        one.submit(SimRequest(request_id, 50, 40))
    finished = []
    for _ in range(500):
        if one.begin() is None:
            break
        finished += [p.request for p in one.end() if p.finished]
    assert one.retractions == 1
    assert [r.request_id for r in finished] == ["old", "young"]
    assert [r.produced for r in finished] == [40, 40]


def test_the_running_limit_holds() -> None:
    one = engine(max_running=2)
    for i in range(3):
        one.submit(SimRequest(f"r{i}", 5, 5))
    one.begin()
    assert (one.running, one.waiting) == (2, 1)


def test_an_abort_gives_the_rows_back_also_in_mid_iteration() -> None:
    one = engine()
    one.submit(SimRequest("r", 50, 5))
    one.submit(SimRequest("s", 30, 5))
    one.begin()
    assert one.abort("r")
    assert not one.abort("r")
    assert [p.request.request_id for p in one.end()] == ["s"]


def test_what_could_never_fit_is_known() -> None:
    one = engine(budget_rows=100)
    assert one.could_ever_hold(100)
    assert not one.could_ever_hold(101)


def test_floors_are_kept_for_their_owners() -> None:
    budget = Budget(100)
    budget.register("a", 30, None)
    budget.register("b", 0, 50)
    assert budget.obtainable_bytes("b") == 50
    assert budget.attainable_bytes("a") == 100
    assert not budget.try_use("b", 51)
    assert budget.try_use("b", 50)
    assert budget.obtainable_bytes("a") == 50
    assert not budget.try_use("a", 51)
    assert budget.try_use("a", 50)
    assert budget.try_use("b", 20)
    assert budget.obtainable_bytes("b") == 30
