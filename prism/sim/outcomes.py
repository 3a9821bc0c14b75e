"""What became of every request of a simulation."""

from dataclasses import dataclass, field

from prism.core.events import Cancelled, Event, Expired, Finished, FirstToken, Refused
from prism.report import RequestOutcome, Status
from prism.traces import TraceRequest


@dataclass(slots=True)
class _Open:
    request: TraceRequest
    first_token_s: float | None = None


@dataclass(slots=True)
class Outcomes:
    """Open requests and closed outcomes; the first ending counts."""

    closed: list[RequestOutcome] = field(default_factory=list)
    _open: dict[str, _Open] = field(default_factory=dict)

    @property
    def open(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open

    def arrived(self, request_id: str, request: TraceRequest) -> None:
        """A request came in."""
        self._open[request_id] = _Open(request)

    def see(self, event: Event, now_s: float) -> None:
        """Take note of first tokens and endings."""
        match event:
            case FirstToken(request_id) if request_id in self._open:
                self._open[request_id].first_token_s = now_s
            case Finished(request_id, reason, output_tokens):
                served = reason in ("stop", "length")
                error = None if served else reason
                self.close(request_id, now_s, "ok" if served else "failed", output_tokens, error)
            case Refused(_, request_id, reason, True):
                self.close(request_id, now_s, "refused", 0, reason)
            case Expired(request_id):
                self.close(request_id, now_s, "timeout", 0, "expired")
            case Cancelled(request_id):
                self.close(request_id, now_s, "failed", 0, "cancelled")
            case _:
                pass

    def close(self, request_id: str, now_s: float, status: Status, tokens: int, error: str | None) -> None:
        """The request ended; later endings of the same request are ignored."""
        opened = self._open.pop(request_id, None)
        if opened is None:
            return
        self.closed.append(
            RequestOutcome(
                request_id=request_id,
                model=opened.request.model,
                arrival_s=opened.request.arrival_s,
                first_token_s=opened.first_token_s,
                end_s=now_s,
                prompt_tokens=opened.request.prompt_tokens,
                output_tokens=tokens,
                status=status,
                error=error,
            )
        )
