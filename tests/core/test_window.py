"""The window, the pledges and the late share, each alone."""

from hypothesis import given
from hypothesis import strategies as st

from prism.core.kv_pledges import KvPledges
from prism.core.late_share import LateShare
from prism.core.window import PrefillWindow


def test_an_empty_window_takes_a_request_of_any_size() -> None:
    window = PrefillWindow(100)
    assert window.fits(5000)
    window.enter("a", "m", 5000)
    assert window.full
    assert not window.fits(1)


def test_the_window_is_shared_by_all_models() -> None:
    window = PrefillWindow(100)
    window.enter("a", "m", 60)
    assert not window.fits(41)
    assert window.fits(40)
    window.enter("b", "n", 40)
    assert window.full


def test_progress_frees_room_and_never_takes_it_back() -> None:
    window = PrefillWindow(100)
    window.enter("a", "m", 100)
    window.progress("a", 70, 100)
    assert window.outstanding_tokens == 30
    window.progress("a", 50, 100)
    assert window.outstanding_tokens == 30
    window.progress("a", 500, 100)
    assert window.outstanding_tokens == 0
    assert window.fits(100)


def test_a_window_without_outstanding_tokens_takes_any_size_whoever_lingers_in_it() -> None:
    window = PrefillWindow(100)
    window.enter("a", "m", 100)
    window.progress("a", 100, 100)
    assert window.fits(5000)
    assert not window.full


steps = st.lists(st.tuples(st.sampled_from("epl"), st.sampled_from("abcd"), st.integers(0, 200)), max_size=40)


@given(steps)
def test_window_accounting_is_the_sum_of_what_it_holds_and_returns_to_zero(
    steps: list[tuple[str, str, int]],
) -> None:
    window = PrefillWindow(128)
    for action, request_id, tokens in steps:
        if action == "e":
            window.enter(request_id, "m", tokens)
        elif action == "p":
            window.progress(request_id, tokens, 200)
        else:
            window.leave(request_id)
        assert window.outstanding_tokens == sum(held.tokens for held in window.outstanding())
        assert window.outstanding_tokens >= 0
    for request_id in "abcd":
        window.leave(request_id)
    assert window.outstanding_tokens == 0
    assert window.fits(10**9)


def test_a_pledge_lasts_until_the_engine_reports_after_the_first_token() -> None:
    pledges = KvPledges()
    pledges.pledge("a", "engine", 100)
    pledges.reported("engine")
    assert pledges.total_bytes == 100
    pledges.prefilled("a")
    pledges.reported("another")
    assert pledges.total_bytes == 100
    pledges.reported("engine")
    assert pledges.total_bytes == 0


def test_pledges_of_every_engine_count_and_the_reserve_stays_free() -> None:
    pledges = KvPledges()
    pledges.pledge("a", "engine", 100)
    assert pledges.fits(50, free_bytes=200, reserve_bytes=50)
    assert not pledges.fits(51, free_bytes=200, reserve_bytes=50)
    pledges.release("a")
    pledges.release("a")
    assert pledges.total_bytes == 0


def test_late_work_is_earned_by_on_time_work() -> None:
    share = LateShare(0.1)
    for _ in range(9):
        assert not share.owed(10)
        share.on_time_went(10, late_tokens=10)
    share.on_time_went(1, late_tokens=10)
    assert share.owed(10)
    share.late_went(10)
    assert not share.owed(10)


def test_credit_never_exceeds_one_late_prompt() -> None:
    share = LateShare(0.5)
    for _ in range(100):
        share.on_time_went(1000, late_tokens=10)
    share.late_went(10)
    assert not share.owed(1)


@given(st.floats(0.01, 0.9), st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), max_size=200))
def test_late_work_stays_within_its_share(share_of: float, pairs: list[tuple[int, int]]) -> None:
    share, on_time, late = LateShare(share_of), 0, 0
    for on_time_tokens, late_tokens in pairs:
        if share.owed(late_tokens):
            share.late_went(late_tokens)
            late += late_tokens
        else:
            share.on_time_went(on_time_tokens, late_tokens)
            on_time += on_time_tokens
    assert late <= share_of * (on_time + late) + 1e-6 * (on_time + late + 1)


def test_a_share_of_zero_gives_nothing() -> None:
    share = LateShare(0.0)
    share.on_time_went(10**9, late_tokens=1)
    assert not share.owed(1)


def test_a_share_of_one_always_goes_first() -> None:
    share = LateShare(1.0)
    assert share.owed(10**9)
    share.late_went(10**9)
    share.on_time_went(1, late_tokens=1)
    assert share.owed(1)
