"""Is an engine up, and does it really run on the shared budget? Both are asked from outside."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_POLL_S = 0.25
_REGISTER_S = 5.0  # the pool is made, and registered, before /health answers
_PROBE_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


class NotReadyError(RuntimeError):
    """The engine must not be routed to; the message says why."""


async def wait_http(url: str, session: aiohttp.ClientSession) -> None:
    """Until the engine's /health answers 200. The caller bounds the wait."""
    while True:
        try:
            async with session.get(url + "/health", timeout=_PROBE_TIMEOUT) as response:
                if response.status == HTTPStatus.OK:
                    return
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass  # still starting
        await asyncio.sleep(_POLL_S)


async def check_registered(ledger_path: Path, name: str, pids: Callable[[], set[int]]) -> None:
    """Check that a process of the engine is the ledger's client `name`; raises `NotReadyError`.

    A plugin that was never loaded cannot refuse to start, so stock SGLang would serve outside the budget.
    """
    from kvcached._core import Ledger  # compiled

    ledger = Ledger(str(ledger_path))
    deadline = asyncio.get_running_loop().time() + _REGISTER_S
    while True:
        clients = [client for client in ledger.snapshot().clients if client.alive and client.name == name]
        ours = pids()
        if any(client.pid in ours for client in clients):
            return
        if asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(_POLL_S)
    found = ", ".join(f"{client.name} (pid {client.pid})" for client in ledger.snapshot().clients) or "nobody"
    raise NotReadyError(
        f"the engine answers but no process of it is registered as {name!r} in {ledger_path} "
        f"(registered: {found}): "
        "it runs without kvcached. Run `kvctl doctor` in its environment, or set engine.kvcached: false"
    )
