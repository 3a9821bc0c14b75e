"""The open loop: every request leaves at its time, whatever became of those before it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from prism.replay.client import MAX_EVENT_BYTES, ClientSettings, CompletionClient
from prism.replay.prompts import PromptMaker
from prism.report import RequestOutcome
from prism.traces import TraceRequest

PROGRESS_INTERVAL_S = 0.25
CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How a trace is replayed.

    `time_scale` multiplies arrival times: 0.5 is twice as fast. `max_s` ends the replay: rows due later are
    not sent, and requests still running then are given up and count as timed out.
    """

    client: ClientSettings
    time_scale: float = 1.0
    max_s: float = 3600.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """The replay at one moment."""

    elapsed_s: float
    total: int
    sent: int
    ended: int
    not_ok: int


@dataclass(slots=True)
class _State:
    sent: int = 0
    outcomes: list[RequestOutcome] = field(default_factory=list)

    def progress(self, elapsed_s: float, total: int) -> Progress:
        not_ok = sum(outcome.status != "ok" for outcome in self.outcomes)
        return Progress(elapsed_s, total, self.sent, len(self.outcomes), not_ok)


def due_rows(
    trace: Sequence[TraceRequest], time_scale: float, max_s: float
) -> list[tuple[float, TraceRequest]]:
    """(due_s, row) of the rows a replay sends, in order. ValueError for a scale or limit of 0 or less."""
    if not time_scale > 0:
        raise ValueError(f"time_scale is {time_scale}; it must be more than 0")
    if not max_s > 0:
        raise ValueError(f"max_s is {max_s}; it must be more than 0")
    rows = [(row.arrival_s * time_scale, row) for row in trace]
    return [(due_s, row) for due_s, row in rows if due_s < max_s]


async def replay(
    trace: Sequence[TraceRequest],
    settings: ReplaySettings,
    makers: Mapping[str, PromptMaker],
    on_progress: Callable[[Progress], None] | None = None,
) -> list[RequestOutcome]:
    """Send the trace and return an outcome per row sent, in order of arrival.

    `makers`: a prompt maker per model; models without one get prompts of one word per token. All prompts are
    made before the first request leaves, so that making them delays nothing.
    """
    rows = due_rows(trace, settings.time_scale, settings.max_s)
    prompts = _prompts(rows, makers, settings.seed)
    state = _State()
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
    # no limit on connections: a limit would close the loop, because a slow answer would delay a later arrival
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, read_bufsize=MAX_EVENT_BYTES
    ) as session:
        start = time.monotonic()

        def clock() -> float:
            return time.monotonic() - start

        client = CompletionClient(session, settings.client, clock)
        async with _reporting(state, len(rows), clock, on_progress):
            tasks: list[asyncio.Task[RequestOutcome]] = []
            try:
                for number, ((due_s, row), prompt) in enumerate(zip(rows, prompts, strict=True)):
                    await asyncio.sleep(max(0.0, due_s - clock()))
                    sending = client.send(f"replay-{number}", row, prompt, due_s)
                    tasks.append(asyncio.create_task(_noted(sending, state)))
                    state.sent += 1
                if tasks:
                    await asyncio.wait(tasks, timeout=max(0.0, settings.max_s - clock()))
                return await _collect(tasks, rows, clock())
            finally:
                for task in tasks:
                    task.cancel()


async def _noted(sending: Awaitable[RequestOutcome], state: _State) -> RequestOutcome:
    outcome = await sending
    state.outcomes.append(outcome)
    return outcome


async def _collect(
    tasks: Sequence[asyncio.Task[RequestOutcome]], rows: Sequence[tuple[float, TraceRequest]], now_s: float
) -> list[RequestOutcome]:
    """Outcomes of finished tasks; the others are cancelled and counted as timed out."""
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    outcomes = []
    for number, (result, (due_s, row)) in enumerate(zip(ended, rows, strict=True)):
        if isinstance(result, RequestOutcome):
            outcomes.append(result)
        elif isinstance(result, asyncio.CancelledError):
            outcomes.append(_given_up(number, due_s, row, now_s))
        else:
            raise result
    return outcomes


def _given_up(number: int, due_s: float, row: TraceRequest, now_s: float) -> RequestOutcome:
    return RequestOutcome(
        request_id=f"replay-{number}",
        model=row.model,
        arrival_s=due_s,
        first_token_s=None,
        end_s=now_s,
        prompt_tokens=row.prompt_tokens,
        output_tokens=0,
        status="timeout",
        error="still running when the replay's time was over",
    )


def _prompts(
    rows: Sequence[tuple[float, TraceRequest]], makers: Mapping[str, PromptMaker], seed: int
) -> list[str]:
    plain = PromptMaker(seed=seed)
    return [makers.get(row.model, plain).prompt(row.prompt_tokens) for _, row in rows]


@contextlib.asynccontextmanager
async def _reporting(
    state: _State, total: int, clock: Callable[[], float], on_progress: Callable[[Progress], None] | None
) -> AsyncIterator[None]:
    """Report progress at intervals while the body runs, and once at its end."""
    if on_progress is None:
        yield
        return
    report = on_progress

    async def tick() -> None:
        while True:
            report(state.progress(clock(), total))
            await asyncio.sleep(PROGRESS_INTERVAL_S)

    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking
        report(state.progress(clock(), total))
