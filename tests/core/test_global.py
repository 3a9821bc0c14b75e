"""The placement scheduler, event by event."""

from prism.core.commands import Activate, Move
from prism.core.config import DeviceSpec, GlobalConfig, PlacedModel
from prism.core.events import (
    ConfigChanged,
    DeviceFacts,
    DeviceLost,
    InstanceFacts,
    ModelLoad,
    ModelState,
    Phase,
    Snapshot,
    Woke,
)
from prism.core.global_ import GlobalScheduler


def config(models: str = "ab", devices: int = 2, **more: object) -> GlobalConfig:
    return GlobalConfig(
        models=tuple(PlacedModel(n, 1, ttft_slo_s=1.0, tpot_slo_s=0.1, floor_bytes=40) for n in models),
        devices=tuple(DeviceSpec(f"d{i}", 100) for i in range(devices)),
        **more,  # type: ignore[arg-type]
    )


def snapshot(instances: dict[str, tuple[str, Phase]], rates: dict[str, float], devices: int = 2) -> Snapshot:
    return Snapshot(
        window_s=60.0,
        loads=tuple(ModelLoad(m, rate, 0.0, 0.0) for m, rate in rates.items()),
        instances=tuple(InstanceFacts(m, m + "#0", d, p) for m, (d, p) in instances.items()),
        devices=tuple(DeviceFacts(f"d{i}", 0) for i in range(devices)),
    )


NOTHING = snapshot({}, {})


def state(model: str, device: str, phase: Phase, op_id: str | None = None) -> ModelState:
    return ModelState(model, model + "#0", device, phase, op_id)


def test_what_is_nowhere_is_activated_once() -> None:
    scheduler = GlobalScheduler(config())
    assert scheduler.on_event(NOTHING, 0.0) == [
        Activate("global-1", 1, "a", "d0"),
        Activate("global-2", 2, "b", "d1"),
    ]
    assert scheduler.on_event(NOTHING, 1.0) == []  # on their way
    scheduler.on_event(state("a", "d0", "ready", "global-1"), 2.0)
    assert scheduler.on_event(snapshot({"a": ("d0", "ready")}, {}), 3.0) == []


def test_models_already_somewhere_count_there() -> None:
    scheduler = GlobalScheduler(config("abc"))
    here = snapshot({"a": ("d0", "ready"), "b": ("d0", "parked")}, {"a": 1.0})
    assert scheduler.on_event(here, 0.0) == [Activate("global-1", 1, "c", "d1")]


def test_a_failed_model_is_tried_again_but_not_for_ever() -> None:
    scheduler = GlobalScheduler(config("a", max_activate_attempts=2, activate_retry_s=10.0))
    failed = snapshot({"a": ("d0", "failed")}, {})
    (first,) = scheduler.on_event(NOTHING, 0.0)
    assert isinstance(first, Activate)
    scheduler.on_event(state("a", "d0", "failed", first.op_id), 1.0)
    assert scheduler.on_event(failed, 5.0) == []
    (second,) = scheduler.on_event(failed, 11.0)
    assert isinstance(second, Activate)
    assert second.revision > first.revision
    scheduler.on_event(state("a", "d0", "failed", second.op_id), 12.0)
    assert scheduler.on_event(failed, 1000.0) == []


def test_becoming_ready_forgives_failures() -> None:
    scheduler = GlobalScheduler(config("a", max_activate_attempts=2, activate_retry_s=0.0))
    for now_s in (1.0, 2.0, 3.0, 4.0):
        (command,) = scheduler.on_event(NOTHING, now_s)
        assert isinstance(command, Activate)
        scheduler.on_event(state("a", "d0", "ready", command.op_id), now_s)
        scheduler.on_event(state("a", "d0", "failed"), now_s)


def test_a_lost_device_is_avoided() -> None:
    scheduler = GlobalScheduler(config("a"))
    scheduler.on_event(snapshot({"a": ("d0", "ready")}, {}), 0.0)
    scheduler.on_event(DeviceLost("d0", "gone"), 1.0)
    (command,) = scheduler.on_event(snapshot({"a": ("d0", "failed")}, {}), 2.0)
    assert isinstance(command, Activate)
    assert command.device == "d1"


def test_what_fits_nowhere_is_named() -> None:
    scheduler = GlobalScheduler(config("abcde"))
    assert len(scheduler.on_event(NOTHING, 0.0)) == 4
    assert list(scheduler.unplaced) == ["e"]
    assert "lacks 20 bytes" in scheduler.unplaced["e"]


def test_moves_only_past_the_threshold_and_after_residency() -> None:
    crowded = snapshot({"a": ("d0", "ready"), "b": ("d0", "ready")}, {"a": 2.0, "b": 1.0})
    assert GlobalScheduler(config()).on_event(crowded, 100.0) == []
    scheduler = GlobalScheduler(config(move_threshold=0.3, min_residency_s=30.0))
    assert scheduler.on_event(crowded, 100.0) == []
    assert scheduler.on_event(crowded, 130.0) == [Move("global-1", 1, "a", "a#0", "d1")]
    assert scheduler.on_event(crowded, 131.0) == []  # one at a time
    strict = GlobalScheduler(config(move_threshold=0.5, min_residency_s=0.0))
    assert strict.on_event(crowded, 0.0) == []


def test_new_models_are_placed_after_a_new_configuration() -> None:
    scheduler = GlobalScheduler(config("a"))
    scheduler.on_event(NOTHING, 0.0)
    assert scheduler.on_event(ConfigChanged(1, config("ab")), 1.0) == []
    (command,) = scheduler.on_event(NOTHING, 2.0)
    assert isinstance(command, Activate)
    assert command.model == "b"


def test_other_events_are_ignored() -> None:
    assert GlobalScheduler(config()).on_event(Woke("x"), 0.0) == []
