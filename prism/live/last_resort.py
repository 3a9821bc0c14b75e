"""What a client gets when prism has a bug: a 500 in OpenAI's shape that tells nothing of the inside."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from starlette.responses import Response

from prism.live.openai_errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("prism.http")


class LastResort:
    """Middleware that answers for every exception nobody else took.

    Starlette's handler for `Exception` would pass it on to the server, which logs it whole: messages and
    stacks of exceptions can hold somebody's prompt. Only the type is logged.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:  # noqa: BLE001 (that is its purpose)
            log.error("a request failed with %s", type(error).__name__)  # noqa: TRY400 (no stack, see above)
            if not started:  # else the server closes the connection, which shows that something is missing
                failure = ApiError(500, "prism failed at this request", "internal_error")
                answer = Response(failure.body(), failure.status, {"content-type": "application/json"})
                await answer(scope, receive, send)
