"""The local scheduler, event by event."""

import pytest

from prism.core.commands import Abort, Command, Dispatch, Hold, Refuse, WakeAt
from prism.core.config import LocalConfig, LocalModel
from prism.core.events import (
    Arrived,
    Cancelled,
    ConfigChanged,
    DeviceLost,
    Dispatched,
    EngineState,
    Expired,
    Finished,
    FirstToken,
    ModelState,
    Phase,
    PrefillProgress,
    Refused,
    Woke,
)
from prism.core.local import LocalScheduler

A = LocalModel("a", kv_bytes_per_token=10, prefill_tokens_per_s=100.0, max_running=4)
B = LocalModel("b", kv_bytes_per_token=10, prefill_tokens_per_s=100.0, max_running=4)
CONFIG = LocalConfig("dev", (A, B), window_prefill_tokens=100, max_queued=8, max_attempts=3)


def scheduler(config: LocalConfig = CONFIG, ready: str = "ab") -> LocalScheduler:
    local = LocalScheduler(config)
    for model in ready:
        phase(local, model, "ready")
    return local


def phase(local: LocalScheduler, model: str, phase: Phase, now_s: float = 0.0) -> list[Command]:
    return local.on_event(ModelState(model, model + "#0", "dev", phase), now_s)


def arrive(
    local: LocalScheduler, request_id: str, tokens: int = 50, due_s: float = 100.0, now_s: float = 0.0
) -> list[Command]:
    return local.on_event(Arrived(request_id, request_id[0], tokens, 16, due_s), now_s)


def sent(commands: list[Command]) -> list[str]:
    return [c.request_id for c in commands if isinstance(c, Dispatch)]


def finish(local: LocalScheduler, request_id: str, now_s: float = 0.0) -> list[str]:
    return sent(local.on_event(Finished(request_id, "stop", 1), now_s))


def test_an_idle_engine_is_sent_the_request_at_once() -> None:
    local = scheduler()
    assert arrive(local, "a1") == [Dispatch("dev-1", "a1", "a", "a#0")]


def test_one_window_for_all_engines() -> None:
    local = scheduler()
    assert sent(arrive(local, "a1", 60)) == ["a1"]
    assert arrive(local, "b1", 60) == [Hold("b1", "window")]
    assert sent(local.on_event(PrefillProgress("a1", 10), 0.0)) == []
    assert sent(local.on_event(PrefillProgress("a1", 20), 0.0)) == ["b1"]


def test_a_request_larger_than_the_window_goes_when_the_device_is_idle() -> None:
    local = scheduler()
    arrive(local, "a1", 60)
    assert arrive(local, "a2", 5000) == [Hold("a2", "window")]
    assert arrive(local, "b1", 10, due_s=200.0) == [Hold("b1", "order")]  # nobody overtakes it
    assert sent(local.on_event(FirstToken("a1"), 0.0)) == ["a2"]
    assert sent(local.on_event(FirstToken("a2"), 0.0)) == ["b1"]


def test_a_whole_prompt_prefilled_makes_room_for_a_request_larger_than_the_window() -> None:
    local = scheduler()
    arrive(local, "a1", 60)  # not streamed: no first token will ever be seen
    assert arrive(local, "b1", 5000) == [Hold("b1", "window")]
    assert arrive(local, "b2", 10, due_s=200.0) == [Hold("b2", "order")]
    assert sent(local.on_event(PrefillProgress("a1", 59), 0.0)) == []
    assert sent(local.on_event(PrefillProgress("a1", 60), 0.0)) == ["b1"]
    assert local.outstanding_prefill_tokens == 5000


def test_a_whole_prompt_prefilled_settles_its_memory_with_the_next_report() -> None:
    local = scheduler(LocalConfig("dev", (A, B), window_prefill_tokens=1000))
    arrive(local, "a1", 50)
    local.on_event(PrefillProgress("a1", 49), 0.0)
    local.on_event(EngineState("a#0", "a", 1500, 0, 1, 0, 0.0), 0.0)
    assert local.pledged_bytes == 660  # no report shows these rows yet
    local.on_event(PrefillProgress("a1", 50), 0.0)
    assert local.pledged_bytes == 660
    local.on_event(EngineState("a#0", "a", 840, 0, 1, 0, 0.0), 0.0)
    assert local.pledged_bytes == 0  # the report shows them: charged once
    assert sent(arrive(local, "a2", 50)) == ["a2"]


def test_speed_is_still_learned_from_a_first_token_that_follows_whole_progress() -> None:
    local = scheduler(ready="a")
    for i in range(40):  # ten times as fast as configured
        now_s = float(i)
        (dispatch,) = arrive(local, f"a{i}", 100, due_s=now_s + 100, now_s=now_s)
        assert isinstance(dispatch, Dispatch)
        local.on_event(Dispatched(dispatch.op_id, dispatch.request_id, dispatch.instance), now_s)
        local.on_event(PrefillProgress(f"a{i}", 100), now_s + 0.1)
        local.on_event(FirstToken(f"a{i}"), now_s + 0.1)
        finish(local, f"a{i}", now_s + 0.1)
    arrive(local, "a-fill", 100, due_s=99.0, now_s=41.0)
    arrive(local, "a-wide", 100, due_s=43.1, now_s=41.0)
    arrive(local, "a-tight", 100, due_s=41.5, now_s=41.0)  # hopeless at the configured speed
    assert sent(local.on_event(PrefillProgress("a-fill", 100), 41.0)) == ["a-tight"]


def test_earliest_due_goes_first_across_models() -> None:
    local = scheduler()
    arrive(local, "a0", 100)
    arrive(local, "a1", 50, due_s=9.0)
    arrive(local, "b1", 50, due_s=8.0)
    assert sent(local.on_event(FirstToken("a0"), 0.0)) == ["b1", "a1"]


def test_equal_due_goes_by_priority_then_arrival() -> None:
    local = scheduler()
    arrive(local, "a0", 100)
    for request_id, priority in (("b1", 0), ("b2", 0), ("a3", 1)):
        local.on_event(Arrived(request_id, request_id[0], 30, 16, 9.0, priority), 0.0)
    assert sent(local.on_event(FirstToken("a0"), 0.0)) == ["a3", "b1", "b2"]


def test_hopeless_requests_do_not_delay_those_that_can_be_on_time() -> None:
    local = scheduler()
    arrive(local, "a0", 100)
    arrive(local, "a1", 100, due_s=0.5)  # needs 1 s
    arrive(local, "b1", 100, due_s=1.2)
    assert sent(local.on_event(FirstToken("a0"), 0.0)) == ["b1"]
    assert sent(local.on_event(FirstToken("b1"), 1.0)) == ["a1"]


def test_the_clock_starts_at_the_work_in_flight() -> None:
    config = LocalConfig("dev", (A, B), window_prefill_tokens=1000)
    local = scheduler(config)
    arrive(local, "a0", 950)
    arrive(local, "a1", 100, due_s=9.0)  # alone it needs 1 s, but 9.5 s of work are ahead: late
    arrive(local, "b1", 60, due_s=20.0)
    assert sent(local.on_event(PrefillProgress("a0", 50), 0.0)) == ["b1"]


def test_late_requests_get_their_share_while_on_time_ones_wait() -> None:
    local = scheduler(LocalConfig("dev", (A,), window_prefill_tokens=50, late_share=0.25, max_queued=99))
    arrive(local, "a-first", 50)
    arrive(local, "a-late", 50, due_s=-1.0)
    for i in range(8):
        arrive(local, f"a{i}", 50, due_s=1000.0 + i)
    order, last = [], "a-first"
    for _ in range(9):
        (last,) = finish(local, last)
        order.append(last)
    assert order[:5] == ["a0", "a1", "a2", "a-late", "a3"]


def test_a_model_that_is_not_ready_is_held_and_blocks_nobody() -> None:
    local = scheduler(ready="b")
    assert arrive(local, "a1", due_s=1.0) == [Hold("a1", "model_not_ready")]
    assert sent(arrive(local, "b1")) == ["b1"]
    assert sent(phase(local, "a", "loading")) == []
    assert sent(phase(local, "a", "ready")) == ["a1"]


@pytest.mark.parametrize(
    "elsewhere", ["loading", "parking", "parked", "draining", "drained", "moving", "cold"]
)
def test_only_ready_engines_are_sent_anything(elsewhere: Phase) -> None:
    local = scheduler()
    phase(local, "a", elsewhere)
    assert arrive(local, "a1") == [Hold("a1", "model_not_ready")]


def test_phases_on_other_devices_are_not_ours() -> None:
    local = scheduler(ready="")
    local.on_event(ModelState("a", "a#0", "other", "ready"), 0.0)
    assert sent(arrive(local, "a1")) == []


def test_kv_memory_is_counted_over_the_device() -> None:
    local = scheduler(LocalConfig("dev", (A, B), window_prefill_tokens=1000))
    for model in "ab":
        local.on_event(EngineState(model + "#0", model, 1500, 0, 0, 0, 0.0), 0.0)
    assert sent(arrive(local, "a1", 50)) == ["a1"]  # 660 bytes: 66 tokens of 10
    assert sent(arrive(local, "b1", 50)) == ["b1"]  # 660 more: 1320 pledged
    assert arrive(local, "a2", 50) == [Hold("a2", "kv")]
    local.on_event(FirstToken("a1"), 0.0)
    assert sent(local.on_event(EngineState("a#0", "a", 1500, 0, 1, 0, 0.0), 0.0)) == ["a2"]


def test_a_model_short_of_memory_lets_others_pass_but_none_of_its_own() -> None:
    local = scheduler(LocalConfig("dev", (A, B), window_prefill_tokens=1000))
    arrive(local, "a1", 50)
    local.on_event(EngineState("a#0", "a", 100, 0, 1, 0, 0.0), 0.0)
    assert arrive(local, "a2", 50, due_s=5.0) == [Hold("a2", "kv")]
    assert arrive(local, "a3", 1, due_s=6.0) == [Hold("a3", "kv")]
    assert sent(arrive(local, "b1", 50, due_s=7.0)) == ["b1"]


def test_an_idle_engine_takes_one_request_whatever_the_figures_say() -> None:
    local = scheduler()
    local.on_event(EngineState("a#0", "a", 0, 0, 0, 0, 0.0), 0.0)
    assert sent(arrive(local, "a1")) == ["a1"]


def test_running_limit() -> None:
    local = scheduler(LocalConfig("dev", (A, B), window_prefill_tokens=1000))
    for i in range(4):
        assert sent(arrive(local, f"a{i}", 10)) == [f"a{i}"]
    assert arrive(local, "a4", 10) == [Hold("a4", "running")]
    assert finish(local, "a0") == ["a4"]


def test_instances_of_a_model_share_its_requests() -> None:
    local = scheduler(LocalConfig("dev", (A,), window_prefill_tokens=1000), ready="a")
    local.on_event(ModelState("a", "a#1", "dev", "ready"), 0.0)
    commands = arrive(local, "a1", 10) + arrive(local, "a2", 10) + arrive(local, "a3", 10)
    assert [c.instance for c in commands if isinstance(c, Dispatch)] == ["a#0", "a#1", "a#0"]


def test_unknown_model_is_refused_for_good() -> None:
    (refusal,) = arrive(scheduler(), "zebra")
    assert refusal == Refuse("dev-1", "zebra", "unknown_model", None)


def test_a_full_queue_refuses_with_a_predicted_retry() -> None:
    local = scheduler(ready="a")
    for i in range(9):  # one goes, eight wait
        arrive(local, f"a{i}", 100)
    (refusal,) = arrive(local, "a9", 100)
    assert isinstance(refusal, Refuse)
    assert refusal.reason == "queue_full"
    assert refusal.retry_after_s == pytest.approx(9.0)


def test_requests_of_a_failed_model_are_refused_and_others_go_on() -> None:
    local = scheduler()
    arrive(local, "a1", 100)
    arrive(local, "a2")
    arrive(local, "b1")
    commands = phase(local, "a", "failed")
    assert [c.request_id for c in commands if isinstance(c, Refuse)] == ["a2"]
    assert sent(commands) == ["b1"]  # the window no longer counts what died
    local.on_event(Finished("a1", "lost", 0), 0.0)
    (refusal,) = arrive(local, "a3")
    assert isinstance(refusal, Refuse)
    assert refusal.reason == "model_failed"
    assert sent(phase(local, "a", "ready")) == []
    local.on_event(Finished("b1", "stop", 1), 0.0)
    assert sent(arrive(local, "a4")) == ["a4"]


def test_a_lost_device_fails_every_engine_on_it() -> None:
    local = scheduler()
    arrive(local, "a1", 100)
    arrive(local, "b1")
    assert local.on_event(DeviceLost("other", "x"), 0.0) == []
    commands = local.on_event(DeviceLost("dev", "fell off the bus"), 0.0)
    assert [c.request_id for c in commands if isinstance(c, Refuse)] == ["b1"]
    assert local.outstanding_prefill_tokens == 0


def test_a_refusal_puts_the_request_back_and_rests_the_engine() -> None:
    local = scheduler()
    arrive(local, "a1", due_s=50.0)
    arrive(local, "a2", due_s=60.0)
    commands = local.on_event(Refused("dev-1", "a1", "busy", final=False), 1.0)
    assert commands == [WakeAt("backoff:a#0", 1.25)]
    assert arrive(local, "a3", now_s=1.1) == [Hold("a3", "backoff")]
    assert sent(local.on_event(Woke("backoff:a#0"), 1.2499)) == ["a1"]  # even a timer that fires early


def test_an_engine_that_keeps_refusing_ends_the_request() -> None:
    local = scheduler()
    (dispatch,) = arrive(local, "a1")
    for _ in range(2):
        assert isinstance(dispatch, Dispatch)
        local.on_event(Refused(dispatch.op_id, "a1", "busy", final=False), 0.0)
        (dispatch,) = local.on_event(Woke("backoff:a#0"), 1.0)
    assert isinstance(dispatch, Dispatch)
    commands = local.on_event(Refused(dispatch.op_id, "a1", "busy", final=False), 2.0)
    assert [type(c) for c in commands] == [Refuse]
    assert local.waiting == local.in_flight == 0


def test_a_final_refusal_ends_the_request() -> None:
    local = scheduler()
    arrive(local, "a1")
    assert local.on_event(Refused("dev-1", "a1", "too long", final=True), 0.0) == []
    assert local.in_flight == local.outstanding_prefill_tokens == local.pledged_bytes == 0


def test_a_stale_refusal_is_ignored() -> None:
    local = scheduler()
    arrive(local, "a1")
    assert local.on_event(Refused("dev-77", "a1", "busy", final=False), 0.0) == []
    assert local.in_flight == 1


@pytest.mark.parametrize("leaving", [Cancelled, Expired])
def test_leaving_while_waiting_and_in_flight(leaving: type[Cancelled] | type[Expired]) -> None:
    local = scheduler()
    arrive(local, "a1", 100)
    arrive(local, "a2", 100)
    assert local.on_event(leaving("a2"), 0.0) == []
    assert local.waiting == 0
    assert local.on_event(leaving("a1"), 0.0) == [Abort("dev-2", "a1", "a#0")]
    assert local.on_event(leaving("a1"), 0.0) == []
    assert local.outstanding_prefill_tokens == 100  # until the engine says it stopped
    local.on_event(Finished("a1", "aborted", 0, "dev-2"), 0.0)
    assert local.outstanding_prefill_tokens == local.in_flight == 0


def test_a_cancelled_request_that_its_engine_refuses_is_not_sent_again() -> None:
    local = scheduler()
    arrive(local, "a1")
    local.on_event(Cancelled("a1"), 0.0)
    assert local.on_event(Refused("dev-1", "a1", "busy", final=False), 0.0) == []
    assert local.waiting == local.in_flight == 0


def test_an_id_that_arrives_twice_is_a_mistake() -> None:
    local = scheduler()
    arrive(local, "a1")
    with pytest.raises(ValueError, match="a1"):
        arrive(local, "a1")


def test_new_configuration_drops_models_and_resizes_the_window() -> None:
    local = scheduler()
    arrive(local, "a1", 100)
    arrive(local, "b1", 30)
    arrive(local, "a2", 30)
    commands = local.on_event(ConfigChanged(1, LocalConfig("dev", (A,), window_prefill_tokens=500)), 0.0)
    assert [c.request_id for c in commands if isinstance(c, Refuse)] == ["b1"]
    assert sent(commands) == ["a2"]


def test_speed_is_learned_from_first_tokens() -> None:
    local = scheduler()
    now_s = 0.0
    for i in range(40):  # ten times as fast as configured
        (dispatch,) = arrive(local, f"a{i}", 100, due_s=now_s + 100, now_s=now_s)
        assert isinstance(dispatch, Dispatch)
        local.on_event(Dispatched(dispatch.op_id, dispatch.request_id, dispatch.instance), now_s)
        now_s += 0.1
        local.on_event(FirstToken(f"a{i}"), now_s)
        local.on_event(Finished(f"a{i}", "stop", 1), now_s)
    arrive(local, "a-fill", 100, due_s=now_s + 9, now_s=now_s)
    arrive(local, "a-tight", 100, due_s=now_s + 0.5, now_s=now_s)  # hopeless at the configured speed
    arrive(local, "b-wide", 100, due_s=now_s + 9, now_s=now_s)
    assert sent(local.on_event(FirstToken("a-fill"), now_s)) == ["a-tight"]
