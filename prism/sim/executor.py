"""The simulated shell: feeds the schedulers, obeys their commands, ends each command in one event."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from prism.core import GlobalScheduler, LocalScheduler
from prism.core.commands import Abort, Activate, Command, Dispatch, Hold, Refuse, WakeAt
from prism.core.events import (
    Arrived,
    DeviceFacts,
    Dispatched,
    Event,
    Expired,
    Finished,
    InstanceFacts,
    ModelState,
    Phase,
    Refused,
    Snapshot,
    Woke,
)
from prism.core.mailbox import GLOBAL, Mailbox, local_name
from prism.core.rates import RateWindow
from prism.sim.engine import SimRequest
from prism.sim.loop import Kind, Loop
from prism.sim.node import Node
from prism.sim.outcomes import Outcomes
from prism.sim.setup import SimSetup
from prism.traces import TraceRequest

if TYPE_CHECKING:
    from prism.sim.eventlog import Recorder


@dataclass(frozen=True, slots=True)
class _Instance:
    model: str
    device: str
    phase: Phase


class Executor:
    """Executes and decides nothing.

    One event at a time, in order, also where a command leads to another event.
    """

    def __init__(self, setup: SimSetup, loop: Loop, outcomes: Outcomes) -> None:
        self._setup = setup
        self._loop = loop
        self._outcomes = outcomes
        self._models = {model.name: model for model in setup.models}
        self._placed = {model.name: model for model in setup.placement.models}
        self.schedulers: dict[str, LocalScheduler | GlobalScheduler] = {
            GLOBAL: GlobalScheduler(setup.placement)
        }
        self.schedulers |= {local_name(d.device): LocalScheduler(d) for d in setup.devices}
        self.nodes = {
            spec.name: Node(spec, loop, setup.profile, partial(self.feed, local_name(spec.name)))
            for spec in setup.placement.devices
        }
        self._instances: dict[str, _Instance] = {}
        self._requests: dict[str, TraceRequest] = {}
        self._home: dict[str, str] = {}  # request -> device that schedules it
        self._timers: dict[tuple[str, str], int] = {}
        self._rates = RateWindow(setup.rate_window_s)
        self._mailbox = Mailbox(self._step)
        self.recorder: Recorder | None = None

    # -- what happens to the cluster -------------------------------------------------------------------------

    def arrive(self, request_id: str, request: TraceRequest) -> None:
        """A request comes in and goes to the device its model was placed on."""
        self._outcomes.arrived(request_id, request)
        self._rates.arrived(request.model, request.prompt_tokens, self._loop.now_s)
        device = next((i.device for i in self._instances.values() if i.model == request.model), None)
        if device is None:
            reason = "not placed" if request.model in self._placed else "unknown model"
            self._outcomes.close(request_id, self._loop.now_s, "refused", 0, reason)
            return
        self._requests[request_id] = request
        self._home[request_id] = device
        due_at_s = self._loop.now_s + (request.ttft_slo_s or self._placed[request.model].ttft_slo_s)
        arrived = Arrived(
            request_id, request.model, request.prompt_tokens, self._setup.assumed_max_tokens, due_at_s
        )
        self.feed(local_name(device), arrived)

    def expire(self, request_id: str) -> None:
        """A request's time is up, if it is still here."""
        if request_id in self._outcomes:
            self.feed(local_name(self._home[request_id]), Expired(request_id))

    def snapshot(self) -> None:
        """Measure the cluster and tell the global scheduler."""
        instances = tuple(
            InstanceFacts(instance.model, name, instance.device, instance.phase)
            for name, instance in self._instances.items()
        )
        devices = tuple(DeviceFacts(node.name, node.budget.used_bytes()) for node in self.nodes.values())
        loads = self._rates.loads(self._loop.now_s)
        self.feed(GLOBAL, Snapshot(self._setup.rate_window_s, loads, instances, devices))

    def report(self) -> None:
        """Let every engine report."""
        for node in self.nodes.values():
            node.report()

    # -- events in, commands out -----------------------------------------------------------------------------

    def feed(self, scheduler: str, event: Event) -> None:
        """Give a scheduler an event and obey what it answers."""
        self._mailbox.put(scheduler, event)

    def _step(self, name: str, event: Event) -> None:
        now_s = self._loop.now_s
        self._outcomes.see(event, now_s)
        if isinstance(event, Finished):
            self._rates.decoded(self._requests[event.request_id].model, event.output_tokens, now_s)
        commands = self.schedulers[name].on_event(event, now_s)
        if self.recorder is not None:
            self.recorder.write(now_s, name, event, commands)
        for command in commands:
            self._obey(name, command)

    def _obey(self, scheduler: str, command: Command) -> None:
        match command:
            case Hold():
                pass
            case Dispatch():
                self._dispatch(scheduler, command)
            case Abort(op_id, request_id, instance):
                node = self.nodes[self._instances[instance].device]
                node.engines[instance].abort(request_id)
                self.feed(scheduler, Finished(request_id, "aborted", 0, op_id))
                node.kick()
            case Refuse(op_id, request_id, reason, _):
                self.feed(scheduler, Refused(op_id, request_id, reason, final=True))
            case Activate():
                self._activate(command)
            case WakeAt(timer_id, at_s):
                self._set_timer(scheduler, timer_id, at_s)
            case _:
                raise NotImplementedError(f"{type(command).__name__} is not simulated")

    def _dispatch(self, scheduler: str, command: Dispatch) -> None:
        request = self._requests[command.request_id]
        node = self.nodes[self._instances[command.instance].device]
        engine = node.engines[command.instance]
        if not engine.could_ever_hold(request.prompt_tokens + request.output_tokens):
            self.feed(
                scheduler, Refused(command.op_id, command.request_id, "longer than the engine can hold", True)
            )
            return
        engine.submit(SimRequest(command.request_id, request.prompt_tokens, request.output_tokens))
        self.feed(scheduler, Dispatched(command.op_id, command.request_id, command.instance))
        node.kick()

    def _activate(self, command: Activate) -> None:
        model = self._placed[command.model]
        instance = f"{command.model}#0"
        node = self.nodes[command.device]
        node.add_engine(instance, self._models[command.model], model.kv_bytes_per_token, model.floor_bytes)
        load_s = 0.0 if self._setup.warm else self._setup.profile.of(command.model).load_s
        self._set_phase(instance, command.model, command.device, "loading", None)
        self._loop.at(
            self._loop.now_s + load_s,
            Kind.LOADED,
            lambda: self._loaded(instance, command.model, command.device, command.op_id),
        )

    def _loaded(self, instance: str, model: str, device: str, op_id: str) -> None:
        self._set_phase(instance, model, device, "ready", op_id)
        node = self.nodes[device]
        self.feed(local_name(device), node.state_of(node.engines[instance]))

    def _set_phase(self, instance: str, model: str, device: str, phase: Phase, op_id: str | None) -> None:
        self._instances[instance] = _Instance(model, device, phase)
        event = ModelState(model, instance, device, phase, op_id)
        self.feed(local_name(device), event)
        self.feed(GLOBAL, event)

    def _set_timer(self, scheduler: str, timer_id: str, at_s: float) -> None:
        """The latest setting of a timer replaces the earlier ones."""
        key = (scheduler, timer_id)
        self._timers[key] = setting = self._timers.get(key, 0) + 1

        def fire() -> None:
            if self._timers.get(key) == setting:
                self.feed(scheduler, Woke(timer_id))

        self._loop.at(max(at_s, self._loop.now_s), Kind.TIMER, fire)
