"""The simulator serves what can be served, keeps budgets, and is the same every time."""

import io
from dataclasses import replace
from pathlib import Path

import pytest

from prism.core.config import DeviceSpec, GlobalConfig, LocalConfig, LocalModel, PlacedModel
from prism.report import RequestOutcome
from prism.sim import EngineProfile, Profile, SimModel, SimSetup, simulate
from prism.sim.eventlog import EventLogError, replay
from prism.sim.simulate import SimResult
from prism.traces import TraceRequest
from prism.traces.generator import Bursts, Lengths, SyntheticModel, SyntheticTrace, generate

ROW_BYTES = 1024
NAMES = ("a", "b", "c")


def setup(budget_rows: int = 4096, floor_rows: int = 1024, devices: int = 1) -> SimSetup:
    names = [f"dev{i}" for i in range(devices)]
    return SimSetup(
        placement=GlobalConfig(
            models=tuple(
                PlacedModel(n, ROW_BYTES, ttft_slo_s=2.0, tpot_slo_s=0.2, floor_bytes=floor_rows * ROW_BYTES)
                for n in NAMES
            ),
            devices=tuple(DeviceSpec(name, budget_rows * ROW_BYTES) for name in names),
        ),
        devices=tuple(
            LocalConfig(name, tuple(LocalModel(n, ROW_BYTES, max_running=16) for n in NAMES))
            for name in names
        ),
        models=tuple(SimModel(n, max_total_tokens=4096, max_running=16) for n in NAMES),
    )


def trace(rate: float = 1.5, seed: int = 1, duration_s: float = 120.0) -> list[TraceRequest]:
    models = tuple(
        SyntheticModel(n, prompt=Lengths(150, 0.8, 600), output=Lengths(40, 0.6, 200)) for n in NAMES
    )
    bursts = Bursts("alternating", on_s=10.0, idle_share=0.1)
    return generate(SyntheticTrace(models, duration_s, rate, alpha=0.3, cv=1.5, bursts=bursts, seed=seed))


def run(rows: list[TraceRequest], what: SimSetup) -> tuple[SimResult, str]:
    log = io.StringIO()
    return simulate(rows, what, log), log.getvalue()


def outcome_of(result: SimResult, request_id: str) -> RequestOutcome:
    return next(outcome for outcome in result.outcomes if outcome.request_id == request_id)


@pytest.mark.parametrize("rate", [0.5, 2.0, 8.0])
def test_every_request_ends_once_and_the_budget_holds(rate: float) -> None:
    rows, what = trace(rate), setup()
    result, _ = run(rows, what)
    assert sorted(o.request_id for o in result.outcomes) == sorted(f"r{i}" for i in range(len(rows)))
    assert 0 < result.peak_bytes["dev0"] <= 4096 * ROW_BYTES
    for outcome in result.outcomes:
        if outcome.status == "ok":
            assert outcome.output_tokens == rows[int(outcome.request_id[1:])].output_tokens
            assert outcome.first_token_s is not None
            assert outcome.end_s is not None
            assert outcome.arrival_s < outcome.first_token_s <= outcome.end_s


def test_a_light_load_meets_its_objectives() -> None:
    result, _ = run(trace(rate=0.3), setup())
    assert all(outcome.status == "ok" for outcome in result.outcomes)
    in_time = [o.ttft_s is not None and o.ttft_s < 2.0 for o in result.outcomes]
    assert sum(in_time) / len(in_time) > 0.9


def test_same_seed_same_bytes() -> None:
    first, second = run(trace(), setup()), run(trace(), setup())
    assert first == second
    assert run(trace(seed=2), setup())[1] != first[1]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_recorded_log_replays_to_the_same_commands(tmp_path: Path, devices: int) -> None:
    log = tmp_path / "events.jsonl"
    _, text = run(trace(rate=6.0), setup(devices=devices))
    log.write_text(text)
    replayed = replay(log)
    assert replayed.events == text.count("\n") - 1
    assert replayed.commands > 100


def test_a_replay_that_differs_names_the_line(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    lines = run(trace(), setup())[1].splitlines()
    number = next(i for i, line in enumerate(lines) if '"Dispatch"' in line)
    lines[number] = lines[number].replace('"Dispatch"', '"Hold"')
    log.write_text("\n".join(lines) + "\n")
    with pytest.raises(EventLogError, match=f"line {number + 1}: the log says"):
        replay(log)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: is no header"),
        ('{"header":2}\n', "line 1: is no header"),
        ("nonsense\n", "line 1: is not JSON"),
        ('{"header":1,"schedulers":{"x":{"type":"LocalConfig"}}}\n', "line 1: config LocalConfig"),
        ('{"header":1,"schedulers":{}}\n{"now_s":1}\n', "line 2: 'commands' is missing"),
        (
            '{"header":1,"schedulers":{}}\n{"now_s":1,"scheduler":"x","event":{},"commands":[]}\n',
            "line 2: scheduler 'x' is not in the header",
        ),
    ],
)
def test_bad_logs(tmp_path: Path, text: str, message: str) -> None:
    log = tmp_path / "bad.jsonl"
    log.write_text(text)
    with pytest.raises(EventLogError) as caught:
        replay(log)
    assert message in str(caught.value)


def test_memory_pressure_retracts_and_still_serves_everyone() -> None:
    rows = [TraceRequest(0.0, NAMES[i % 3], 100, 400) for i in range(30)]
    result, _ = run(rows, setup(budget_rows=2400, floor_rows=800))
    assert result.retractions > 0
    assert {outcome.status for outcome in result.outcomes} == {"ok"}
    assert result.peak_bytes["dev0"] <= 2400 * ROW_BYTES


def test_a_request_that_can_never_fit_is_refused() -> None:
    result, _ = run([TraceRequest(0.0, "a", 3000, 2000), TraceRequest(0.0, "a", 10, 2)], setup())
    assert outcome_of(result, "r0").status == "refused"
    assert outcome_of(result, "r1").status == "ok"


def test_loading_is_waited_for() -> None:
    result, _ = run([TraceRequest(1.0, "a", 10, 2)], replace(setup(), warm=False))
    outcome = outcome_of(result, "r0")
    assert outcome.status == "ok"
    assert outcome.first_token_s is not None
    assert outcome.first_token_s > 10.0


def test_time_limits_end_what_takes_too_long() -> None:
    what = replace(setup(), request_timeout_s=0.5)
    result, _ = run([TraceRequest(0.0, "a", 10, 2000), TraceRequest(5.0, "a", 10, 2)], what)
    assert outcome_of(result, "r0").status == "timeout"
    assert outcome_of(result, "r1").status == "ok"


def test_unplaced_models_are_refused_and_named() -> None:
    result, _ = run([TraceRequest(0.0, name, 10, 2) for name in NAMES], setup(budget_rows=2048))
    assert {o.model: o.status for o in result.outcomes} == {"a": "ok", "b": "ok", "c": "refused"}
    assert "lacks" in result.unplaced["c"]


def test_models_spread_over_devices_share_less() -> None:
    one, two = run(trace(rate=3.0), setup())[0], run(trace(rate=3.0), setup(devices=2))[0]
    assert two.end_s < one.end_s


def test_busy_neighbours_slow_each_other() -> None:
    rows = [TraceRequest(0.0, "a", 10, 100), TraceRequest(0.0, "b", 10, 100)]
    alone = run(rows[:1], setup())[0].end_s
    shared = run(rows, setup())[0].end_s
    apart = run(rows, replace(setup(), profile=Profile(colocation=0.0)))[0].end_s
    assert shared == pytest.approx(2 * alone, rel=0.1)
    assert apart == pytest.approx(alone, rel=0.1)


def test_speed_comes_from_the_profile() -> None:
    slow = Profile(models={"a": EngineProfile(base_s=1.0, prefill_s_per_token=0.0, decode_s_per_request=0.0)})
    result, _ = run([TraceRequest(0.0, "a", 10, 5)], replace(setup(), profile=slow))
    outcome = outcome_of(result, "r0")
    assert outcome.ttft_s == pytest.approx(1.0)
    assert outcome.tpot_s == pytest.approx(1.0)


def test_moves_are_refused_rather_than_misreported() -> None:
    with pytest.raises(ValueError, match="moves"):
        replace(setup(), placement=replace(setup().placement, move_threshold=0.1))
