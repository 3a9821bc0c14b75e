"""The metrics window: counted arrivals and tokens turned into the rates of a Snapshot."""

from collections import deque
from dataclasses import dataclass, field

from prism.core.events import ModelLoad

_BUCKETS = 10


@dataclass(slots=True)
class _Bucket:
    number: int
    requests: int = 0
    prompt_tokens: int = 0
    decode_tokens: int = 0


@dataclass(slots=True)
class RateWindow:
    """Rates per model over the last `window_s`, in ten buckets: memory is bounded by the number of models."""

    window_s: float
    _models: dict[str, deque[_Bucket]] = field(default_factory=dict)
    _started_s: float | None = None

    def arrived(self, model: str, prompt_tokens: int, now_s: float) -> None:
        """A request of the model came in."""
        bucket = self._bucket(model, now_s)
        bucket.requests += 1
        bucket.prompt_tokens += prompt_tokens

    def decoded(self, model: str, tokens: int, now_s: float) -> None:
        """The model produced output tokens."""
        self._bucket(model, now_s).decode_tokens += tokens

    def loads(self, now_s: float) -> tuple[ModelLoad, ...]:
        """Rates per second, sorted by model; models without traffic in the window are left out."""
        first = self._number(now_s) - _BUCKETS + 1
        started_s = now_s if self._started_s is None else self._started_s
        span_s = min(self.window_s, max(self.window_s / _BUCKETS, now_s - started_s))
        loads = []
        for model in sorted(self._models):
            live = [b for b in self._models[model] if b.number >= first]
            if live:
                loads.append(
                    ModelLoad(
                        model=model,
                        requests_per_s=sum(b.requests for b in live) / span_s,
                        prompt_tokens_per_s=sum(b.prompt_tokens for b in live) / span_s,
                        decode_tokens_per_s=sum(b.decode_tokens for b in live) / span_s,
                    )
                )
        return tuple(loads)

    def _number(self, now_s: float) -> int:
        return int(now_s * _BUCKETS // self.window_s)

    def _bucket(self, model: str, now_s: float) -> _Bucket:
        if self._started_s is None:
            self._started_s = now_s
        buckets = self._models.setdefault(model, deque(maxlen=_BUCKETS))
        number = self._number(now_s)
        if not buckets or buckets[-1].number != number:
            buckets.append(_Bucket(number))
        return buckets[-1]
