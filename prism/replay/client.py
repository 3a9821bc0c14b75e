"""One streamed completion: send it, time its tokens, say how it ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from prism.report import RequestOutcome
from prism.report.outcome import Status
from prism.traces import TraceRequest

MAX_EVENT_BYTES = 4 * 2**20
MAX_ERROR_BYTES = 64 * 2**10
MAX_ERROR_CHARS = 500
REFUSED_STATUSES = frozenset({429, 503})
WHOLE_FINISHES = frozenset({"stop", "length"})  # any other reason, say abort, ends half an answer


class StreamError(Exception):
    """The server's answer is not the complete completion that was asked for."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Where and how requests are sent.

    `base_url` has no trailing `/v1`. `ignore_eos` (an extension of SGLang's) makes outputs exactly as long
    as the trace says, and one of another length a failure; without it a model may stop earlier. `timeout_s`
    bounds one request, its wait included.
    """

    base_url: str
    timeout_s: float = 300.0
    ignore_eos: bool = True
    api_key: str | None = None


@dataclass(slots=True)
class _Seen:
    """What has arrived of a stream so far."""

    first_token_s: float | None = None
    pieces: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish: str | None = None


class CompletionClient:
    """Sends trace requests to `/v1/completions`. `clock` gives seconds since the replay began."""

    def __init__(
        self, session: aiohttp.ClientSession, settings: ClientSettings, clock: Callable[[], float]
    ) -> None:
        self._session = session
        self._settings = settings
        self._clock = clock

    async def send(
        self, request_id: str, request: TraceRequest, prompt: str, arrival_s: float
    ) -> RequestOutcome:
        """The outcome of one request; never raises but for cancellation.

        `arrival_s` is when the request was due, so a client that is late itself makes no figure look better.
        """
        seen = _Seen()
        status, error = await self._attempt(request_id, request, prompt, seen)
        output = seen.pieces if seen.output_tokens is None else seen.output_tokens
        return RequestOutcome(
            request_id=request_id,
            model=request.model,
            arrival_s=arrival_s,
            first_token_s=seen.first_token_s,
            end_s=self._clock(),
            prompt_tokens=request.prompt_tokens if seen.prompt_tokens is None else seen.prompt_tokens,
            output_tokens=output,
            status=status,
            error=error,
        )

    async def _attempt(
        self, request_id: str, request: TraceRequest, prompt: str, seen: _Seen
    ) -> tuple[Status, str | None]:
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                return await self._exchange(request_id, request, prompt, seen)
        except TimeoutError:
            return "timeout", f"no complete answer within {self._settings.timeout_s:g} s"
        except (aiohttp.ClientError, OSError, StreamError, ValueError) as error:
            return "failed", f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]

    async def _exchange(
        self, request_id: str, request: TraceRequest, prompt: str, seen: _Seen
    ) -> tuple[Status, str | None]:
        url = f"{self._settings.base_url.rstrip('/')}/v1/completions"
        body = self._body(request, prompt)
        headers = {"x-request-id": request_id}
        if self._settings.api_key is not None:
            headers["authorization"] = f"Bearer {self._settings.api_key}"
        async with self._session.post(url, json=body, headers=headers) as response:
            if response.status != 200:  # noqa: PLR2004 (HTTP's own number)
                raw = await response.content.read(MAX_ERROR_BYTES)
                text = raw.decode("utf-8", "replace")[:MAX_ERROR_CHARS]
                refused = response.status in REFUSED_STATUSES
                return ("refused" if refused else "failed"), f"HTTP {response.status}: {text}"
            async for event in _events(response.content):
                self._take(event, seen)
        self._check_whole(request, seen)
        return "ok", None

    def _check_whole(self, request: TraceRequest, seen: _Seen) -> None:
        """StreamError unless the answer ended by itself, and as long as it had to be."""
        if seen.finish is None:
            raise StreamError("the stream ended before the completion did")
        if seen.finish not in WHOLE_FINISHES:
            raise StreamError(f"the completion ended with finish_reason {seen.finish!r}, not stop or length")
        if not self._settings.ignore_eos or seen.output_tokens == request.output_tokens:
            return
        asked = f"asked for exactly {request.output_tokens} tokens (ignore_eos)"
        if seen.output_tokens is None:
            raise StreamError(f"{asked}, but the server sent no usage to tell how many came")
        raise StreamError(f"{asked}, but usage says {seen.output_tokens} (finish_reason {seen.finish!r})")

    def _body(self, request: TraceRequest, prompt: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": request.model,
            "prompt": prompt,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._settings.ignore_eos:
            body["ignore_eos"] = True
        return body

    def _take(self, event: dict[str, Any], seen: _Seen) -> None:
        """Note what one event says."""
        if "error" in event:
            error = event["error"]
            raise StreamError(str(error.get("message", error) if isinstance(error, dict) else error))
        for choice in event.get("choices") or []:
            if choice.get("text"):
                seen.pieces += 1
                if seen.first_token_s is None:
                    seen.first_token_s = self._clock()
            if choice.get("finish_reason") is not None:
                seen.finish = str(choice["finish_reason"])
        usage = event.get("usage")
        if isinstance(usage, dict):
            seen.prompt_tokens = int(usage["prompt_tokens"])
            seen.output_tokens = int(usage["completion_tokens"])


async def _events(stream: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """JSON objects of a server-sent event stream, up to `[DONE]` or its end."""
    async for line in stream:
        if not line.startswith(b"data:"):
            continue  # blank lines, comments, event names
        payload = line[5:].strip()
        if payload == b"[DONE]":
            return
        document = json.loads(payload)
        if not isinstance(document, dict):
            raise StreamError(f"an event is no JSON object: {payload[:80]!r}")
        yield document
