"""What a device's scheduler knows about its engines."""

from dataclasses import dataclass, field

from prism.core.events import EngineState, ModelState, Phase

MAX_BACKOFF_STEPS = 8


@dataclass(slots=True)
class Engine:
    """One instance. `requests` are those it was sent and that have not ended, in order of dispatch."""

    instance: str
    model: str
    order: int
    phase: Phase = "cold"
    free_bytes: int | None = None
    requests: dict[str, None] = field(default_factory=dict)
    refusals: int = 0  # in a row
    resting_until_s: float | None = None

    def resting(self, now_s: float) -> bool:
        """Left alone for a moment after it refused a request."""
        return self.resting_until_s is not None and now_s < self.resting_until_s

    def rest(self, now_s: float, step_s: float) -> float:
        """It refused: leave it alone, longer each time in a row. Returns until when."""
        self.refusals += 1
        self.resting_until_s = now_s + step_s * min(self.refusals, MAX_BACKOFF_STEPS)
        return self.resting_until_s

    def accepted(self) -> None:
        """It took a request."""
        self.refusals = 0
        self.resting_until_s = None


@dataclass(slots=True)
class EngineBook:
    """Engines of one device by instance. Engines of one model are interchangeable."""

    _engines: dict[str, Engine] = field(default_factory=dict)
    _made: int = 0

    def get(self, instance: str) -> Engine | None:
        """The engine, if any event named it."""
        return self._engines.get(instance)

    def all(self) -> tuple[Engine, ...]:
        """Every known engine, in order of first sight."""
        return tuple(self._engines.values())

    def enter_phase(self, event: ModelState) -> Engine:
        """Take a phase change; a failed or cold engine's last report is void."""
        engine = self._engines.get(event.instance)
        if engine is None:
            self._made += 1
            engine = Engine(event.instance, event.model, self._made)
            self._engines[event.instance] = engine
        engine.phase = event.phase
        if event.phase != "ready":
            engine.free_bytes = None
        else:
            engine.accepted()
        return engine

    def report(self, event: EngineState) -> None:
        """Take an engine's own figures; those of an engine nobody declared are ignored."""
        engine = self._engines.get(event.instance)
        if engine is not None:
            engine.free_bytes = event.free_bytes

    def ready(self, model: str, now_s: float) -> list[Engine]:
        """Engines that may be sent a request of the model, least loaded first."""
        engines = [
            e
            for e in self._engines.values()
            if e.model == model and e.phase == "ready" and not e.resting(now_s)
        ]
        return sorted(engines, key=lambda e: (len(e.requests), e.order))

    def failed(self, model: str) -> bool:
        """The model has engines here and all of them failed."""
        phases = [engine.phase for engine in self._engines.values() if engine.model == model]
        return bool(phases) and all(phase == "failed" for phase in phases)

    def has_ready(self, model: str) -> bool:
        """Some engine of the model is ready, resting or not."""
        return any(e.model == model and e.phase == "ready" for e in self._engines.values())
