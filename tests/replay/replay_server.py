"""A small real HTTP server that behaves as its test tells it, model by model."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Behaviour:
    """What the server does with a request: wait until `hold_for` requests came, then answer like this."""

    hold_for: int = 0
    status: int = 200
    texts: tuple[str, ...] = ("", "one", " two")
    usage: dict[str, int] | None = field(default_factory=lambda: {"prompt_tokens": 7, "completion_tokens": 3})
    finish: bool = True
    reason: str = "length"
    hang: bool = False
    error: str | None = None


class Server:
    """Notes every request body it receives."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._came = asyncio.Condition()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        async with self._came:
            self.bodies.append(await request.json())
            self.headers.append(dict(request.headers))
            self._came.notify_all()
            await self._came.wait_for(lambda: len(self.bodies) >= self.behaviour.hold_for)
        if self.behaviour.status != 200:
            return web.json_response({"error": {"message": "the reason"}}, status=self.behaviour.status)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for text in self.behaviour.texts:
            await self._send(response, {"choices": [{"text": text, "finish_reason": None}]})
        if self.behaviour.hang:
            await asyncio.Event().wait()
        if self.behaviour.error is not None:
            await self._send(response, {"error": {"message": self.behaviour.error}})
        if self.behaviour.finish:
            await self._send(response, {"choices": [{"text": "", "finish_reason": self.behaviour.reason}]})
            await self._send(response, {"choices": [], "usage": self.behaviour.usage})
            await response.write(b"data: [DONE]\n\n")
        return response

    @staticmethod
    async def _send(response: web.StreamResponse, document: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(document).encode() + b"\n\n")


@contextlib.asynccontextmanager
async def serving(behaviour: Behaviour) -> AsyncIterator[tuple[Server, str]]:
    """The server and its base URL."""
    server = Server(behaviour)
    app = web.Application(client_max_size=2**22)
    app.router.add_post("/v1/completions", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield server, f"http://{host}:{port}"
    finally:
        await runner.cleanup()
