"""The dispatch window of one device: prompt tokens its engines hold and have not prefilled yet.

One window for all engines of a device. Were it one per engine, engines would time-share whatever they hold
and the order in which requests were sent would mean nothing.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Outstanding:
    """Prompt tokens of one dispatched request still to be prefilled."""

    model: str
    tokens: int


@dataclass(slots=True)
class PrefillWindow:
    """Bounds outstanding prompt tokens to `limit_tokens`.

    A window with nothing outstanding takes one request of any size: were it judged by the requests it holds,
    one that only lingers there, its prompt long done, would keep a large prompt out.
    """

    limit_tokens: int
    _held: dict[str, Outstanding] = field(default_factory=dict)
    _tokens: int = 0

    @property
    def outstanding_tokens(self) -> int:
        """Prompt tokens not yet prefilled, over all engines."""
        return self._tokens

    @property
    def full(self) -> bool:
        """No request, however small, may enter."""
        return 0 < self._tokens >= self.limit_tokens

    def fits(self, tokens: int) -> bool:
        """May a prompt of this length enter now?"""
        return self._tokens == 0 or self._tokens + tokens <= self.limit_tokens

    def enter(self, request_id: str, model: str, tokens: int) -> None:
        """Charge a dispatched request."""
        self.leave(request_id)
        self._held[request_id] = Outstanding(model, tokens)
        self._tokens += tokens

    def progress(self, request_id: str, prefilled_tokens: int, prompt_tokens: int) -> None:
        """`prefilled_tokens` of `prompt_tokens` are done; reports that would raise the charge are ignored."""
        held = self._held.get(request_id)
        if held is None:
            return
        left = max(0, prompt_tokens - prefilled_tokens)
        if left < held.tokens:
            self._held[request_id] = Outstanding(held.model, left)
            self._tokens -= held.tokens - left

    def leave(self, request_id: str) -> None:
        """Prefill is over, or the request is gone. Idempotent."""
        held = self._held.pop(request_id, None)
        if held is not None:
            self._tokens -= held.tokens

    def outstanding(self) -> tuple[Outstanding, ...]:
        """What is in the window, in dispatch order."""
        return tuple(self._held.values())
