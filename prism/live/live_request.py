"""One request from arrival to its single ending, as the live shell keeps it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from prism.core.commands import Dispatch, Refuse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prism.live.api_request import ApiRequest

Decision = Dispatch | Refuse
StopReason = Literal["cancelled", "expired", "stopping", "aborted"]


@dataclass(slots=True)
class LiveRequest:
    """What is known of a request. Times are on the service's clock."""

    request_id: str
    device: str
    api: ApiRequest
    prompt_tokens: int
    max_tokens: int
    arrival_s: float
    due_at_s: float
    decisions: asyncio.Queue[Decision] = field(default_factory=lambda: asyncio.Queue(maxsize=4))
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    stop_reason: StopReason | None = None
    hold_reason: str | None = None
    open_dispatch_op_id: str | None = None  # of a Dispatch that has not ended yet
    abort_op_id: str | None = None  # of an Abort that has not ended yet
    sent_unix_s: float | None = (
        None  # when its bytes were written to the engine (wall clock, as in engine reports)
    )
    prefilled: bool = False
    first_token_s: float | None = None
    output_tokens: int = 0
    ended: bool = False

    def stop(self, reason: StopReason) -> None:
        """Interrupt it; the first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason
            self.stopped.set()


class RequestTable:
    """Every request that has not ended, bounded."""

    def __init__(self, max_requests: int) -> None:
        self.max_requests = max_requests
        self._requests: dict[str, LiveRequest] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[LiveRequest]:
        return iter(tuple(self._requests.values()))

    @property
    def full(self) -> bool:
        """No further request may be added."""
        return len(self._requests) >= self.max_requests

    def add(self, request: LiveRequest) -> None:
        """The request came in."""
        self._requests[request.request_id] = request
        self._empty.clear()
        self._filled.set()

    def get(self, request_id: str) -> LiveRequest | None:
        """The request, unless it has ended."""
        return self._requests.get(request_id)

    def remove(self, request_id: str) -> None:
        """The request ended and its answer is out."""
        self._requests.pop(request_id, None)
        if not self._requests:
            self._empty.set()
            self._filled.clear()

    def of_model(self, model: str) -> list[LiveRequest]:
        """Requests of the model."""
        return [request for request in self._requests.values() if request.api.model == model]

    async def wait_filled(self) -> None:
        """Until there is a request."""
        await self._filled.wait()

    async def wait_empty(self) -> None:
        """Until no request is left."""
        await self._empty.wait()
