"""Requests waiting on a device, before any engine has them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from prism.core.events import Arrived


@dataclass(frozen=True, slots=True)
class Waiting:
    """`seq` is the arrival order and survives a refusal by an engine; `refusals` counts those."""

    request: Arrived
    seq: int
    refusals: int = 0


@dataclass(slots=True)
class WaitingQueue:
    """Requests by arrival number, found by id, with prompt tokens summed per model."""

    _by_seq: dict[int, Waiting] = field(default_factory=dict)
    _seq_of: dict[str, int] = field(default_factory=dict)
    _tokens: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._by_seq)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._seq_of

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._by_seq.values())

    def __getitem__(self, seq: int) -> Waiting:
        return self._by_seq[seq]

    def add(self, waiting: Waiting) -> None:
        """Put a request in; its number decides its place, not the moment."""
        request = waiting.request
        self._by_seq[waiting.seq] = waiting
        self._seq_of[request.request_id] = waiting.seq
        self._tokens[request.model] = self._tokens.get(request.model, 0) + request.prompt_tokens

    def remove(self, request_id: str) -> Waiting | None:
        """Take a request out; None when it is not here."""
        seq = self._seq_of.pop(request_id, None)
        if seq is None:
            return None
        waiting = self._by_seq.pop(seq)
        self._tokens[waiting.request.model] -= waiting.request.prompt_tokens
        return waiting

    def of_model(self, model: str) -> list[Waiting]:
        """The model's requests, in arrival order."""
        return sorted((w for w in self._by_seq.values() if w.request.model == model), key=lambda w: w.seq)

    def tokens_per_model(self) -> dict[str, int]:
        """Prompt tokens waiting, per model."""
        return {model: tokens for model, tokens in self._tokens.items() if tokens}
