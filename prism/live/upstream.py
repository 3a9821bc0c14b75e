"""The engine's side of one request: send it, pass the answer on as it comes, say how it ended."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

import aiohttp

from prism.core.events import Dispatched, Event, FinishReason, FirstToken, PrefillProgress
from prism.live.openai_errors import ApiError, from_engine
from prism.live.sse import SseSplitter, StreamError, StreamEvent, read_event

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import SimpleNamespace

    from prism.live.client_side import ClientSide
    from prism.live.clock import Clock
    from prism.live.live_request import LiveRequest

_CONNECT_S = 10.0
_MAX_ANSWER_BYTES = 64 * 2**20
_MAX_ERROR_BYTES = 64 * 2**10
_LOST = "the engine stopped while it worked on this request"


class NotTakenError(Exception):
    """The engine never got the request; the scheduler decides anew."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the engine ended the request; `error` is for the client, unless it has its answer."""

    reason: FinishReason
    error: ApiError | None = None


@dataclass(frozen=True, slots=True)
class Forwarding:
    """One Dispatch being carried out."""

    op_id: str
    instance: str
    url: str | None  # None: it is not running
    request: LiveRequest
    client: ClientSide
    feed: Callable[[Event], None]
    clock: Clock

    def sent(self) -> None:
        """The request's bytes are written: the Dispatch is done. Later calls do nothing."""
        request = self.request
        if request.open_dispatch_op_id == self.op_id:
            request.open_dispatch_op_id = None
            request.sent_unix_s = time.time()
            self.feed(Dispatched(self.op_id, request.request_id, self.instance))

    def progressed(self, event: StreamEvent) -> None:
        """Tell the scheduler what an event of the stream shows."""
        request = self.request
        if event.completion_tokens is not None:
            request.output_tokens = event.completion_tokens
        elif event.progress:
            request.output_tokens += 1  # one step; the usage at the end corrects it
        if event.content and request.first_token_s is None:
            request.first_token_s = self.clock.now_s()
            request.prefilled = True
            self.feed(FirstToken(request.request_id))
        elif event.progress and not request.prefilled:
            request.prefilled = True  # a step without text yet: an unfinished character, or the role
            self.feed(PrefillProgress(request.request_id, request.prompt_tokens))


class Upstream:
    """Sends requests to engines.

    Every request has a connection of its own; closing it aborts the request.
    """

    def __init__(self) -> None:
        """Call within the running loop."""
        trace = aiohttp.TraceConfig()
        trace.on_request_chunk_sent.append(_chunk_sent)
        self._session = aiohttp.ClientSession(
            # a kept-alive connection may be closed by the engine just as we write: not worth 0.2 ms on
            # loopback
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            trace_configs=[trace],
            trust_env=False,
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def forward(self, forwarding: Forwarding) -> Ending:
        """Carry it out; raises `NotTakenError`."""
        api = forwarding.request.api
        if forwarding.url is None:
            raise NotTakenError("engine not running")
        try:
            async with self._session.post(
                forwarding.url + api.route,
                data=api.engine_body(),
                headers={"content-type": "application/json"},
                trace_request_ctx=forwarding,
            ) as response:
                forwarding.sent()
                if response.status != HTTPStatus.OK:
                    body = await response.content.read(_MAX_ERROR_BYTES)
                    return Ending("error", from_engine(response.status, body))
                if api.stream:
                    return await _pass_stream(forwarding, response)
                return await _pass_answer(forwarding, response)
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            if forwarding.request.open_dispatch_op_id is not None:
                raise NotTakenError(f"engine not reachable: {type(error).__name__}") from None
            return Ending("lost", ApiError(502, _LOST, "engine_lost"))


async def _chunk_sent(
    _session: aiohttp.ClientSession, context: SimpleNamespace, _params: aiohttp.TraceRequestChunkSentParams
) -> None:
    context.trace_request_ctx.sent()


async def _pass_stream(forwarding: Forwarding, response: aiohttp.ClientResponse) -> Ending:
    """Pass events on one by one; what the client did not ask for (the usage) is held back."""
    client, api = forwarding.client, forwarding.request.api
    splitter = SseSplitter()
    reason: FinishReason = "stop"
    async for data in response.content.iter_any():
        for raw in splitter.push(data):
            try:
                event = read_event(raw)
            except StreamError as error:
                return Ending("error", ApiError(502, str(error), "engine_error"))
            forwarding.progressed(event)
            if event.error is not None:
                return Ending("error", ApiError(502, event.error, "engine_error"))
            if event.finish_reason is not None:
                reason = _finish_reason(event.finish_reason)
            if event.usage_only and not api.include_usage:
                continue
            if not client.started:
                await client.start_stream()
            await client.chunk(event.raw)
            if event.done:
                await client.end()
                return Ending(reason)
    return Ending("lost", ApiError(502, _LOST, "engine_lost"))


async def _pass_answer(forwarding: Forwarding, response: aiohttp.ClientResponse) -> Ending:
    parts: list[bytes] = []
    size = 0
    async for data in response.content.iter_any():
        parts.append(data)
        size += len(data)
        if size > _MAX_ANSWER_BYTES:
            message = f"the engine's answer is larger than {_MAX_ANSWER_BYTES} bytes; ask for less"
            return Ending("error", ApiError(502, message, "answer_too_large"))
    body = b"".join(parts)
    try:
        document = json.loads(body)
        forwarding.request.output_tokens = int(document["usage"]["completion_tokens"])
        reason = _finish_reason(document["choices"][-1]["finish_reason"])
    except (ValueError, LookupError, TypeError):
        return Ending("error", ApiError(502, "the engine's answer is not what was expected", "engine_error"))
    await forwarding.client.answer(200, body)
    return Ending(reason)


def _finish_reason(engine_reason: object) -> FinishReason:
    if engine_reason == "length":
        return "length"
    return "error" if engine_reason == "abort" else "stop"
