"""A simulated device: runs its engines' iterations in virtual time and tells what they bring as events."""

from collections.abc import Callable
from functools import partial

from prism.core.config import DeviceSpec
from prism.core.events import EngineState, Event, Finished, FirstToken, PrefillProgress
from prism.sim.budget import Budget
from prism.sim.engine import SimEngine
from prism.sim.loop import Kind, Loop
from prism.sim.profile import Profile
from prism.sim.setup import SimModel

Emit = Callable[[Event], None]


class Node:
    """Engines of one device over one KV budget. Busy ones slow each other down."""

    def __init__(self, spec: DeviceSpec, loop: Loop, profile: Profile, emit: Emit) -> None:
        self.name = spec.name
        self.budget = Budget(spec.budget_bytes)
        self.engines: dict[str, SimEngine] = {}
        self._loop = loop
        self._profile = profile
        self._emit = emit

    def add_engine(self, instance: str, model: SimModel, row_bytes: int, floor_bytes: int) -> None:
        """Start an engine; its floor is kept for it from now on."""
        self.budget.register(instance, floor_bytes, model.limit_bytes)
        profile = self._profile.of(model.name)
        self.engines[instance] = SimEngine(instance, model, profile, self.budget, row_bytes)

    def kick(self) -> None:
        """Start iterations wherever there is work and none is under way; who lacked memory tries again."""
        for engine in self.engines.values():
            if engine.stepping or not engine.busy:
                continue
            alone_s = engine.begin()
            if alone_s is None:
                continue
            engine.stepping = True
            took_s = alone_s * self._profile.slowdown(sum(e.busy for e in self.engines.values()))
            engine.last_iteration_s = took_s
            self._loop.at(self._loop.now_s + took_s, Kind.ENGINE, partial(self._end, engine))

    def report(self) -> None:
        """Every engine's figures, as events."""
        for engine in self.engines.values():
            self._emit(self.state_of(engine))

    def state_of(self, engine: SimEngine) -> EngineState:
        """One engine's figures."""
        return EngineState(
            instance=engine.instance,
            model=engine.model.name,
            free_bytes=engine.free_bytes,
            used_bytes=self.budget.used_bytes(engine.instance),
            running=engine.running,
            waiting=engine.waiting,
            iteration_s=engine.last_iteration_s,
        )

    def _end(self, engine: SimEngine) -> None:
        engine.stepping = False
        for progress in engine.end():
            request = progress.request
            if progress.first_token:
                self._emit(FirstToken(request.request_id))
            if progress.finished:
                self._emit(Finished(request.request_id, "length", request.produced))
            elif request.produced == 0:
                self._emit(PrefillProgress(request.request_id, request.cached))
        self.kick()
