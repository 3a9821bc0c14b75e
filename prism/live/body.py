"""Reads a request's body, within a size and a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

from prism.live.openai_errors import ApiError

if TYPE_CHECKING:
    from starlette.requests import Request

_BODY_S = 60.0
_LINGER_S = 5.0
_LINGER_BYTES = 64 * 2**20


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body. ApiError 413 above the limit, 408 when it takes too long, 400 when it ends early."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit_bytes:
        await _linger(request)
        raise _too_large(limit_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > limit_bytes:
                    break
                parts.append(part)
    except ClientDisconnect:
        raise ApiError(400, "the body ended early", "incomplete_body") from None
    except TimeoutError:
        raise ApiError(408, f"the body was not complete after {_BODY_S:g} s", "incomplete_body") from None
    if size > limit_bytes:
        await _linger(request)
        raise _too_large(limit_bytes)
    return b"".join(parts)


async def _linger(request: Request) -> None:
    """Throw away what still comes, for a while.

    A connection that is closed with unread data is reset, and most clients read the answer only after they
    have sent the whole body: they would see a broken pipe instead of it.
    """
    left_bytes = _LINGER_BYTES
    try:
        async with asyncio.timeout(_LINGER_S):
            while left_bytes > 0:
                message = await request.receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                left_bytes -= len(message.get("body", b""))
    except TimeoutError:
        return


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError(
        413, f"the body is larger than {limit_bytes} bytes (server.max_body_bytes)", "body_too_large"
    )
