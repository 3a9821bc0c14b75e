"""One request's way: arrival, the scheduler's decisions, the engine's answer, exactly one ending.

It is a response object that drives everything, so that a client that goes away is noticed at any point,
waiting included. Whatever happens, the scheduler hears of exactly one ending of the request and of each
command.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import Response

from prism.core.commands import Dispatch, Refuse
from prism.core.events import Arrived, Cancelled, Event, Expired, Finished, Refused
from prism.core.mailbox import local_name
from prism.live.client_side import ClientSide, client_gone
from prism.live.connection import drop_of
from prism.live.decider import Decider
from prism.live.openai_errors import ApiError
from prism.live.upstream import Forwarding, NotTakenError, Upstream

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send

    from prism.live.clock import Clock
    from prism.live.live_request import LiveRequest, RequestTable, StopReason
    from prism.live.metrics import Metrics, Outcome

_ANSWER_S = 5.0  # for the last words to a client that may have stopped reading
_DROP_S = 1.0

_REFUSALS: dict[str, tuple[int, str]] = {
    "unknown_model": (404, "no device serves this model"),
    "model_failed": (503, "the model has failed"),
    "queue_full": (429, "too many requests are waiting"),
    "engine_refused": (503, "the engine could not be reached, again and again"),
}


@dataclass(frozen=True, slots=True)
class ExchangeContext:
    """What every exchange needs."""

    decider: Decider
    table: RequestTable
    upstream: Upstream
    clock: Clock
    metrics: Metrics
    timeout_s: float
    url_of: Callable[[str], str | None]  # instance -> base URL while it runs
    failure_of: Callable[[str], str]  # model -> why it failed


class ExchangeResponse(Response):
    """Carries the request out when it is called."""

    def __init__(self, context: ExchangeContext, request: LiveRequest) -> None:
        super().__init__()
        self._context = context
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        client = ClientSide(send, self._request.request_id, drop_of(scope))
        await Exchange(self._context, self._request, client).run(receive)


class Exchange:
    """The life of one request."""

    def __init__(self, context: ExchangeContext, request: LiveRequest, client: ClientSide) -> None:
        self._context = context
        self._request = request
        self._client = client

    async def run(self, receive: Receive) -> None:
        """Until the request has ended and its answer is out."""
        request, context = self._request, self._context
        context.table.add(request)
        work = asyncio.create_task(self._work())
        gone = asyncio.create_task(client_gone(receive))
        stopped = asyncio.create_task(request.stopped.wait())
        try:
            timeout_s = max(0.0, request.arrival_s + context.timeout_s - context.clock.now_s())
            await asyncio.wait({work, gone, stopped}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            else:
                await self._interrupt(work, gone)
        except OSError:
            pass  # the client went away while its answer was written
        finally:
            for task in (gone, stopped, work):
                task.cancel()
            try:
                self._end_anyway()
            finally:  # whatever failed above: a request left in the table takes its place for ever
                context.table.remove(request.request_id)

    # -- the normal way --------------------------------------------------------------------------------------

    async def _work(self) -> None:
        request = self._request
        arrived = Arrived(
            request_id=request.request_id,
            model=request.api.model,
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_tokens,
            due_at_s=request.due_at_s,
        )
        self._feed(arrived)
        while True:  # ends: the scheduler refuses for good after its bounded number of attempts
            decision = await request.decisions.get()
            if isinstance(decision, Refuse):
                await self._refuse(decision)
                return
            if await self._dispatch(decision):
                return

    async def _dispatch(self, decision: Dispatch) -> bool:
        """Carry out a Dispatch; False when the engine never got it and the scheduler decides anew."""
        request, context = self._request, self._context
        forwarding = Forwarding(
            decision.op_id,
            decision.instance,
            context.url_of(decision.instance),
            request,
            self._client,
            self._feed,
            context.clock,
        )
        try:
            ending = await context.upstream.forward(forwarding)
        except NotTakenError as refusal:
            request.open_dispatch_op_id = None
            self._feed(Refused(decision.op_id, request.request_id, str(refusal), final=False))
            return False
        outcome: Outcome = "ok" if ending.reason in ("stop", "length") else "failed"
        if ending.error is not None and ending.error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            outcome = "rejected"  # the client's mistake
        self._end(Finished(request.request_id, ending.reason, request.output_tokens), outcome)
        if ending.error is not None:
            await self._client.fail(ending.error)
        return True

    async def _refuse(self, decision: Refuse) -> None:
        request = self._request
        status, message = _REFUSALS.get(decision.reason, (503, f"refused: {decision.reason}"))
        if decision.reason == "model_failed":
            message = f"model {request.api.model!r} has failed: {self._context.failure_of(request.api.model)}"
        self._end(Refused(decision.op_id, request.request_id, decision.reason, final=True), "refused")
        await self._client.fail(ApiError(status, message, decision.reason, None, decision.retry_after_s))

    # -- interruptions ---------------------------------------------------------------------------------------

    async def _interrupt(self, work: asyncio.Task[None], gone: asyncio.Task[None]) -> None:
        """The client left, time is up, or prism stops: tell the scheduler, leave the engine, answer.

        Telling the scheduler may bring an Abort at once (the executor notes its id in the request);
        closing the connection then makes the engine abort.
        """
        request = self._request
        request.stop("cancelled" if gone.done() else "expired")  # no effect if it was stopped with a reason
        reason = request.stop_reason or "cancelled"
        if reason == "expired":
            self._end(Expired(request.request_id), "timeout")
        elif reason != "aborted":
            self._end(Cancelled(request.request_id), "cancelled")
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await work
        self._end_commands()
        if reason != "cancelled":
            await self._answer_in_time(_interruption(reason, self._context.timeout_s), gone)

    async def _answer_in_time(self, error: ApiError, gone: asyncio.Task[None]) -> None:
        """Send the error, unless the client does not read: its time is over."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._client.fail(error)
        except TimeoutError:
            self._client.drop()
            await asyncio.wait({gone}, timeout=_DROP_S)

    def _end_commands(self) -> None:
        """End a Dispatch whose bytes were never written, a Refuse that was not delivered, and the Abort."""
        request = self._request
        while not request.decisions.empty():
            decision = request.decisions.get_nowait()
            if isinstance(decision, Refuse):
                self._feed(Refused(decision.op_id, request.request_id, decision.reason, final=True))
        if request.open_dispatch_op_id is not None:
            op_id, request.open_dispatch_op_id = request.open_dispatch_op_id, None
            self._feed(Refused(op_id, request.request_id, "stopped before it was sent", final=True))
        if request.abort_op_id is not None:
            op_id, request.abort_op_id = request.abort_op_id, None
            event = Finished(request.request_id, "aborted", request.output_tokens, op_id)
            if request.ended:
                self._feed(event)
            else:
                self._end(event, "failed")

    # -- endings ---------------------------------------------------------------------------------------------

    def _end_anyway(self) -> None:
        """No way out of an exchange, not even a bug, may leave a request or a command without an ending."""
        if not self._request.ended:
            self._end(Finished(self._request.request_id, "error", self._request.output_tokens), "failed")
        self._end_commands()

    def _end(self, event: Event, outcome: Outcome) -> None:
        if not self._request.ended:
            self._request.ended = True
            self._context.metrics.ended(self._request, outcome, self._context.clock.now_s())
            self._feed(event)

    def _feed(self, event: Event) -> None:
        self._context.decider.feed(local_name(self._request.device), event)


def _interruption(reason: StopReason, timeout_s: float) -> ApiError:
    match reason:
        case "expired":
            return ApiError(504, f"the request was not done after {timeout_s:g} s", "request_timeout")
        case "aborted":
            return ApiError(503, "the request was aborted to make room", "aborted", None, 1.0)
        case _:
            return ApiError(503, "the service is stopping", "stopping", None, 5.0)
