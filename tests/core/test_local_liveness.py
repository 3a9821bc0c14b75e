"""Whatever happens in whatever order, every request ends once and nothing waits for an idle engine.

The machine below is an executor that keeps the contract of `prism.core.events` and is otherwise as awkward as
it may be: engines refuse, die, come back, report nonsense; answers come late and in any order; clients leave
at any time.
"""

from dataclasses import dataclass, field
from random import Random

import pytest

from prism.core.commands import Abort, Command, Dispatch, Hold, Refuse, WakeAt
from prism.core.config import LocalConfig, LocalModel
from prism.core.events import (
    Arrived,
    Cancelled,
    DeviceLost,
    Dispatched,
    EngineState,
    Event,
    Expired,
    Finished,
    FinishReason,
    FirstToken,
    ModelState,
    Phase,
    PrefillProgress,
    Refused,
    Woke,
)
from prism.core.local import LocalScheduler

MODELS = ("a", "b")
INSTANCES = {"a#0": "a", "a#1": "a", "b#0": "b"}
CONFIG = LocalConfig(
    "dev",
    tuple(LocalModel(m, kv_bytes_per_token=1, prefill_tokens_per_s=100.0, max_running=3) for m in MODELS),
    window_prefill_tokens=64,
    max_queued=6,
    max_attempts=3,
)


@dataclass
class Request:
    model: str
    tokens: int
    where: str = "waiting"  # waiting, sent, running, decoding, lost, refusing, gone
    op_id: str = ""
    instance: str = ""
    abort_op_id: str | None = None
    endings: list[str] = field(default_factory=list)


class Executor:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_s = 0.0
        self.local = LocalScheduler(CONFIG)
        self.requests: dict[str, Request] = {}
        self.phases: dict[str, Phase] = dict.fromkeys(INSTANCES, "cold")
        self.timers: dict[str, float] = {}
        self.op_ids: set[str] = set()

    def send(self, event: Event) -> None:
        self.now_s += 0.125
        for command in self.local.on_event(event, self.now_s):
            self.obey(command)

    def obey(self, command: Command) -> None:
        if isinstance(command, Dispatch | Abort | Refuse):
            assert command.op_id not in self.op_ids
            self.op_ids.add(command.op_id)
        match command:
            case Dispatch(op_id, request_id, model, instance):
                request = self.requests[request_id]
                assert request.where == "waiting", "sent while not waiting"
                assert not request.endings
                assert self.phases[instance] == "ready"
                assert INSTANCES[instance] == model == request.model
                request.where, request.op_id, request.instance = "sent", op_id, instance
            case Abort(op_id, request_id, instance):
                request = self.requests[request_id]
                assert request.where in ("sent", "running", "decoding", "lost")
                assert request.instance == instance
                assert request.abort_op_id is None
                request.abort_op_id = op_id
            case Refuse(op_id, request_id, _, _):
                request = self.requests[request_id]
                assert request.where == "waiting"
                request.where, request.op_id = "refusing", op_id
            case WakeAt(timer_id, at_s):
                assert at_s > self.now_s
                self.timers[timer_id] = at_s
            case Hold(request_id, reason):
                assert self.requests[request_id].where == "waiting"
                assert reason
            case _:
                raise AssertionError(command)

    def pick(self, *where: str) -> str | None:
        found = [r for r, request in self.requests.items() if request.where in where]
        return self.random.choice(found) if found else None

    # -- what clients do -------------------------------------------------------------------------------------

    def arrive(self) -> None:
        model, tokens = self.random.choice(MODELS), self.random.randint(1, 150)
        request_id = f"{model}{len(self.requests)}"
        self.requests[request_id] = Request(model, tokens)
        self.send(Arrived(request_id, model, tokens, 8, self.now_s + self.random.uniform(-1, 10)))

    def leave(self) -> None:
        request_id = self.pick("waiting", "sent", "running", "decoding", "lost")
        if request_id is None or self.requests[request_id].endings:
            return
        request = self.requests[request_id]
        kind = self.random.choice((Cancelled, Expired))
        request.endings.append(kind.__name__)
        if request.where == "waiting":
            request.where = "gone"
        self.send(kind(request_id))

    # -- what engines and the executor do --------------------------------------------------------------------

    def engine_takes(self) -> None:
        if request_id := self.pick("sent"):
            request = self.requests[request_id]
            request.where = "running"
            self.send(Dispatched(request.op_id, request_id, request.instance))

    def engine_refuses(self) -> None:
        if request_id := self.pick("sent"):
            request = self.requests[request_id]
            final = self.random.random() < 0.2
            if request.abort_op_id is not None or final:
                request.where = "gone"
                request.endings = request.endings or ["Refused"]
            else:
                request.where = "waiting"
            self.send(Refused(request.op_id, request_id, "no", final))

    def refusal_is_answered(self) -> None:
        if request_id := self.pick("refusing"):
            request = self.requests[request_id]
            request.where = "gone"
            request.endings.append("Refused")
            self.send(Refused(request.op_id, request_id, "no", final=True))

    def prefill_goes_on(self) -> None:
        if request_id := self.pick("running"):
            self.send(PrefillProgress(request_id, self.random.randint(0, 200)))

    def first_token_comes(self) -> None:
        if request_id := self.pick("running"):
            self.requests[request_id].where = "decoding"
            self.send(FirstToken(request_id))

    def engine_finishes(self) -> None:
        if request_id := self.pick("running", "decoding"):
            self.end(request_id, "stop")

    def lost_request_is_ended(self) -> None:
        if request_id := self.pick("lost"):
            self.end(request_id, "lost")

    def end(self, request_id: str, reason: FinishReason) -> None:
        request = self.requests[request_id]
        request.where = "gone"
        if request.abort_op_id is not None:
            assert request.endings
            self.send(Finished(request_id, "aborted", 0, request.abort_op_id))
        else:
            request.endings.append("Finished")
            self.send(Finished(request_id, reason, 1))

    def engine_reports(self) -> None:
        instance = self.random.choice(sorted(INSTANCES))
        free_bytes = self.random.choice((0, 100, 200, 10_000))
        self.send(EngineState(instance, INSTANCES[instance], free_bytes, 0, 0, 0, 0.01))

    def engine_becomes_ready(self) -> None:
        self.set_phase(self.random.choice(sorted(INSTANCES)), "ready")

    def engine_goes(self) -> None:
        instance = self.random.choice(sorted(INSTANCES))
        phase: Phase = self.random.choice(("loading", "parked", "failed"))
        if self.phases[instance] == "ready":
            self.set_phase(instance, phase)

    def device_is_lost(self) -> None:
        if self.random.random() < 0.9:
            return
        for instance, phase in self.phases.items():
            if phase != "cold":
                self.phases[instance] = "failed"
                self.lose_requests_of(instance)
        self.send(DeviceLost("dev", "gone"))

    def set_phase(self, instance: str, phase: Phase) -> None:
        self.phases[instance] = phase
        if phase in ("parked", "failed"):
            self.lose_requests_of(instance)
        self.send(ModelState(INSTANCES[instance], instance, "dev", phase))

    def lose_requests_of(self, instance: str) -> None:
        for request in self.requests.values():
            if request.instance == instance and request.where in ("sent", "running", "decoding"):
                request.where = "lost"

    def timer_fires(self) -> None:
        if self.timers:
            timer_id = self.random.choice(sorted(self.timers))
            self.now_s = max(self.now_s, self.timers.pop(timer_id) - 0.25)  # may be a little early
            self.send(Woke(timer_id))

    # -- what must hold --------------------------------------------------------------------------------------

    def check(self) -> None:
        self.nothing_waits_for_an_idle_engine()
        where = [request.where for request in self.requests.values()]
        assert self.local.waiting == where.count("waiting")
        assert self.local.in_flight == sum(w in ("sent", "running", "decoding", "lost") for w in where)
        assert all(len(request.endings) <= 1 for request in self.requests.values())

    def nothing_waits_for_an_idle_engine(self) -> None:
        if any(r.where in ("sent", "running") for r in self.requests.values()):
            return  # some prefill is outstanding: what waits is looked at when it ends
        busy = {r.instance for r in self.requests.values() if r.where == "decoding"}
        for instance, model in INSTANCES.items():
            resting = f"backoff:{instance}" in self.timers
            if self.phases[instance] == "ready" and instance not in busy and not resting:
                stuck = [r for r, q in self.requests.items() if q.where == "waiting" and q.model == model]
                assert not stuck, f"{stuck} wait while {instance} is idle"

    def settle(self) -> None:
        """Engines ready, answers given: then all has ended and all accounts are empty."""
        for instance in INSTANCES:
            self.set_phase(instance, "ready")
        answers = (
            self.timer_fires, self.engine_takes, self.first_token_comes, self.engine_finishes,
            self.lost_request_is_ended, self.refusal_is_answered,
        )  # fmt: skip
        for _ in range(2 * len(self.requests) + 10):
            for answer in answers:
                answer()
                self.check()
        for request_id, request in self.requests.items():
            assert request.where == "gone", (request_id, request)
            assert len(request.endings) == 1, (request_id, request)
        assert self.local.waiting == self.local.in_flight == 0
        assert self.local.outstanding_prefill_tokens == self.local.pledged_bytes == 0


WEIGHTS = {
    Executor.arrive: 8,
    Executor.leave: 1,
    Executor.engine_takes: 6,
    Executor.engine_refuses: 2,
    Executor.refusal_is_answered: 2,
    Executor.prefill_goes_on: 2,
    Executor.first_token_comes: 5,
    Executor.engine_finishes: 5,
    Executor.lost_request_is_ended: 2,
    Executor.engine_reports: 2,
    Executor.engine_becomes_ready: 2,
    Executor.engine_goes: 1,
    Executor.device_is_lost: 1,
    Executor.timer_fires: 3,
}


@pytest.mark.parametrize("seed", range(200))
def test_every_request_ends_once_and_none_is_forgotten(seed: int) -> None:
    executor = Executor(seed)
    rules, weights = list(WEIGHTS), list(WEIGHTS.values())
    for _ in range(200):
        executor.random.choices(rules, weights)[0](executor)
        executor.check()
    executor.settle()
