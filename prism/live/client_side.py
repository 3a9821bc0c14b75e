"""The response to one client, as far as it has been sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prism.live.sse import error_event

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Send

    from prism.live.openai_errors import ApiError

_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # proxies such as nginx would hold events back otherwise
}


class ClientSide:
    """Sends status, headers and body parts, each at once; errors in whatever form still can be sent."""

    def __init__(self, send: Send, request_id: str, drop: Callable[[], None]) -> None:
        self._send = send
        self._drop = drop
        self._request_id = request_id
        self.started = False
        self.closed = False

    async def start_stream(self) -> None:
        """Status and headers of an event stream."""
        await self._start(200, _STREAM_HEADERS)

    async def chunk(self, data: bytes) -> None:
        """A part of the stream."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """The end of the stream."""
        if not self.closed:
            self.closed = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """A whole JSON response."""
        await self._start(
            status, {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        )
        self.closed = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def fail(self, error: ApiError) -> None:
        """The error as a response, or as the last event of a stream that has begun."""
        if self.closed:
            return
        if self.started:
            await self.chunk(error_event(error.document()))
            await self.end()
        else:
            await self.answer(error.status, error.body(), error.headers())

    def drop(self) -> None:
        """Break the connection off, with all that was not read yet; nothing can be sent any more."""
        self.closed = True
        self._drop()

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        self.started = True
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        pairs.append((b"x-request-id", self._request_id.encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})


async def client_gone(receive: Receive) -> None:
    """Until the client closes the connection (its body has been read already)."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
