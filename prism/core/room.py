"""Where a request could go now: window, KV check and running limit of a device's engines, in one place."""

from dataclasses import dataclass, field

from prism.core.config import LocalModel
from prism.core.engines import Engine, EngineBook
from prism.core.events import Arrived
from prism.core.kv_pledges import KvPledges
from prism.core.window import PrefillWindow


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Why a request cannot go now: model_not_ready, backoff, window, running or kv."""

    reason: str


def kv_need_bytes(request: Arrived, model: LocalModel) -> int:
    """KV bytes a request is taken to need: its prompt and the output assumed for requests of its model."""
    return (
        request.prompt_tokens + min(request.max_tokens, model.kv_output_tokens)
    ) * model.kv_bytes_per_token


@dataclass(slots=True)
class Room:
    """Everything a dispatch takes and an ending gives back."""

    window: PrefillWindow
    engines: EngineBook = field(default_factory=EngineBook)
    pledges: KvPledges = field(default_factory=KvPledges)
    models: dict[str, LocalModel] = field(default_factory=dict)

    def find(self, request: Arrived, now_s: float) -> Engine | NoRoom:
        """The engine this request may be sent to now.

        An engine that holds nothing always takes one request, whatever the KV figures say: its floor
        guarantees that much, and were it not so, a stale figure could leave a request waiting for an idle
        engine for good.
        """
        engines = self.engines.ready(request.model, now_s)
        if not engines:
            resting = self.engines.has_ready(request.model)
            return NoRoom("backoff" if resting else "model_not_ready")
        if not self.window.fits(request.prompt_tokens):
            return NoRoom("window")
        model = self.models[request.model]
        need_bytes = kv_need_bytes(request, model)
        reason = "running"
        for engine in engines:
            if not engine.requests:
                return engine
            if len(engine.requests) >= model.max_running:
                continue
            if engine.free_bytes is None or self.pledges.fits(
                need_bytes, engine.free_bytes, model.reserve_bytes
            ):
                return engine
            reason = "kv"
        return NoRoom(reason)

    def open_models(self, now_s: float) -> set[str]:
        """Models of which at least a tiny request could go somewhere; requests of others need no plan now."""
        return {
            engine.model
            for engine in self.engines.all()
            if engine.phase == "ready" and not engine.resting(now_s) and self._open(engine)
        }

    def _open(self, engine: Engine) -> bool:
        model = self.models.get(engine.model)
        if model is None or not engine.requests:
            return model is not None
        if len(engine.requests) >= model.max_running:
            return False
        return engine.free_bytes is None or self.pledges.fits(0, engine.free_bytes, model.reserve_bytes)

    def take(self, request: Arrived, engine: Engine) -> None:
        """The request is being sent to the engine."""
        self.window.enter(request.request_id, request.model, request.prompt_tokens)
        need_bytes = kv_need_bytes(request, self.models[request.model])
        self.pledges.pledge(request.request_id, engine.instance, need_bytes)
        engine.requests[request.request_id] = None

    def progressed(self, request: Arrived, prefilled_tokens: int) -> None:
        """So much of its prompt is done; the whole of it counts as `prefilled`."""
        if prefilled_tokens >= request.prompt_tokens:
            self.prefilled(request.request_id)
        else:
            self.window.progress(request.request_id, prefilled_tokens, request.prompt_tokens)

    def prefilled(self, request_id: str) -> None:
        """Its whole prompt is done, or its first token came, which says the same. Idempotent."""
        self.window.leave(request_id)
        self.pledges.prefilled(request_id)

    def give_back(self, request_id: str, instance: str) -> None:
        """The request is no longer with the engine. Idempotent."""
        self.window.leave(request_id)
        self.pledges.release(request_id)
        engine = self.engines.get(instance)
        if engine is not None:
            engine.requests.pop(request_id, None)
