"""A client's connection that a request can break off.

ASGI knows no such thing: a response can only be ended by sending, and closing waits for what was written.
Neither ever happens with a client that does not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Any

    from starlette.types import Scope

_KEY = "prism.drop"


class DroppableConnection(H11Protocol):
    """uvicorn's HTTP/1.1, with the way to drop the connection in the scope's extensions."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The client connected: every request of this connection is told how to drop it."""
        super().connection_made(transport)
        served = self.app

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope.setdefault("extensions", {})[_KEY] = transport.abort
            await served(scope, receive, send)

        self.app = app


def drop_of(scope: Scope) -> Callable[[], None]:
    """How to break off the connection of a request; does nothing under another server."""
    drop: Callable[[], None] = scope.get("extensions", {}).get(_KEY, _nothing)
    return drop


def _nothing() -> None:
    return None
