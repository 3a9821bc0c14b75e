"""The placement scheduler: which model lives where.

Acts on snapshots: what is nowhere is activated, and past a threshold one model moves at a time. Between
snapshots it only remembers how its commands ended.
"""

from dataclasses import dataclass, replace

from prism.core.commands import Activate, Command, Move
from prism.core.config import GlobalConfig, PlacedModel
from prism.core.events import (
    ConfigChanged,
    DeviceLost,
    Event,
    InstanceFacts,
    ModelState,
    Snapshot,
)
from prism.core.kvpr import weighted_rate
from prism.core.ops import OpIds
from prism.core.placement import DeviceLoad, best_move, place

_SETTLED = ("ready", "failed")
_GONE = ("cold", "failed", "drained")


@dataclass(slots=True)
class _Pending:
    """A command about a model that has not ended."""

    op_id: str
    devices: tuple[str, ...]


@dataclass(slots=True)
class _Failures:
    """Failures in a row, and when the last one was."""

    count: int
    last_s: float


class GlobalScheduler:
    """Events in, commands out. Acts on Snapshot, ModelState, DeviceLost, ConfigChanged; ignores the rest."""

    def __init__(self, config: GlobalConfig) -> None:
        self._config = config
        self._ops = OpIds("global")
        self._revision = 0
        self._instances: dict[str, InstanceFacts] = {}
        self._since_s: dict[str, float] = {}  # instance -> when it became ready
        self._pending: dict[str, _Pending] = {}
        self._failures: dict[str, _Failures] = {}
        self._lost: set[str] = set()
        self._unplaced: dict[str, str] = {}

    @property
    def unplaced(self) -> dict[str, str]:
        """Models no device can hold as of the last snapshot: name -> what is missing."""
        return dict(self._unplaced)

    def on_event(self, event: Event, now_s: float) -> list[Command]:
        """Take one event; return what to do now, in order."""
        match event:
            case Snapshot():
                return self._snapshot(event, now_s)
            case ModelState():
                self._phase(event, now_s)
            case DeviceLost(device):
                self._device_lost(device)
            case ConfigChanged(_, config):
                if isinstance(config, GlobalConfig):
                    self._config = config
            case _:
                pass
        return []

    def _phase(self, event: ModelState, now_s: float) -> None:
        facts = InstanceFacts(event.model, event.instance, event.device, event.phase, event.peer_devices)
        self._see(facts, now_s)
        pending = self._pending.get(event.model)
        if event.phase in _SETTLED and pending is not None and pending.op_id == event.op_id:
            del self._pending[event.model]
        if event.phase == "ready":
            self._failures.pop(event.model, None)
        elif event.phase == "failed":
            count = self._failures[event.model].count if event.model in self._failures else 0
            self._failures[event.model] = _Failures(count + 1, now_s)

    def _see(self, facts: InstanceFacts, now_s: float) -> None:
        self._instances[facts.instance] = facts
        if facts.phase == "ready":
            self._since_s.setdefault(facts.instance, now_s)
        else:
            self._since_s.pop(facts.instance, None)

    def _device_lost(self, device: str) -> None:
        self._lost.add(device)
        for facts in tuple(self._instances.values()):
            if device == facts.device or device in facts.peer_devices:
                self._instances[facts.instance] = replace(facts, phase="failed")
                self._since_s.pop(facts.instance, None)
        self._pending = {m: p for m, p in self._pending.items() if device not in p.devices}

    def _snapshot(self, snapshot: Snapshot, now_s: float) -> list[Command]:
        known, self._instances = self._instances, {}
        for facts in snapshot.instances:
            self._see(facts, now_s)
        for instance in known.keys() - self._instances.keys():
            self._since_s.pop(instance, None)
        loads_by_model = {load.model: load for load in snapshot.loads}
        rates = {
            m.name: weighted_rate(m, loads_by_model.get(m.name), self._config.variant)
            for m in self._config.models
        }
        present = {facts.device for facts in snapshot.devices} - self._lost
        devices = {
            spec.name: DeviceLoad(spec, order)
            for order, spec in enumerate(self._config.devices)
            if spec.name in present
        }
        homeless = self._settle(devices, rates, now_s)
        commands = self._activate(homeless, rates, devices)
        return commands or self._move(rates, devices, now_s)

    def _settle(
        self, devices: dict[str, DeviceLoad], rates: dict[str, float], now_s: float
    ) -> list[PlacedModel]:
        """Put models that live somewhere, or are on their way, onto their devices; return the homeless."""
        homeless = []
        for model in self._config.models:
            homes = self._homes(model.name)
            for device in homes:
                if device in devices:
                    devices[device].put(model, rates[model.name])
            if not homes and self._may_try(model.name, now_s):
                homeless.append(model)
        return homeless

    def _homes(self, model: str) -> tuple[str, ...]:
        """Devices a model takes memory of, now or when its pending command ends."""
        homes: dict[str, None] = {}
        for facts in self._instances.values():
            if facts.model == model and facts.phase not in _GONE:
                homes.update(dict.fromkeys((facts.device, *facts.peer_devices)))
        if model in self._pending:
            homes.update(dict.fromkeys(self._pending[model].devices))
        return tuple(homes)

    def _may_try(self, model: str, now_s: float) -> bool:
        failures = self._failures.get(model)
        if failures is None:
            return True
        tries_left = failures.count < self._config.max_activate_attempts
        return tries_left and now_s >= failures.last_s + self._config.activate_retry_s

    def _activate(
        self, homeless: list[PlacedModel], rates: dict[str, float], devices: dict[str, DeviceLoad]
    ) -> list[Command]:
        placement = place(homeless, rates, devices)
        self._unplaced = placement.unplaced
        commands: list[Command] = []
        for model, chosen in placement.assigned.items():
            op_id, revision = self._decide(model, chosen)
            commands.append(Activate(op_id, revision, model, chosen[0], chosen[1:]))
        return commands

    def _move(self, rates: dict[str, float], devices: dict[str, DeviceLoad], now_s: float) -> list[Command]:
        threshold = self._config.move_threshold
        if threshold is None or self._pending:
            return []
        residents = {f.model: f.instance for f in self._instances.values() if f.phase == "ready"}
        movable = [
            m
            for m in self._config.models
            if m.device is None
            and m.name in residents
            and now_s - self._since_s[residents[m.name]] >= self._config.min_residency_s
        ]
        move = best_move(movable, rates, devices, threshold)
        if move is None:
            return []
        model, target = move
        op_id, revision = self._decide(model, (target,))
        return [Move(op_id, revision, model, residents[model], target)]

    def _decide(self, model: str, devices: tuple[str, ...]) -> tuple[str, int]:
        self._revision += 1
        op_id = self._ops.next()
        self._pending[model] = _Pending(op_id, devices)
        return op_id, self._revision
