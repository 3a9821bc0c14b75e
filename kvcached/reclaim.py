"""Give memory back when the ledger asks for it: for a process that is no engine and keeps a cache.

Example::

    from kvcached.config import Config
    from kvcached.ledgers import open_ledger

    ledger = open_ledger(Config.from_env(), "cpu")
    client = ledger.register(name="embeddings", floor_bytes=64 << 20)

    def give_back(nbytes):
        client.release(cache.shrink(nbytes))

    with ReclaimServer(ledger, client, give_back):
        ...  # client.try_claim before filling; after every change client.set_spare with what could go
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Self

from kvcached.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from kvcached._core import Ledger, LedgerClient

_WAIT_S = 0.25
"""Bound on one sleep: how long stopping may take, and what a lapse that nobody rang for may cost."""

_log = logging.getLogger(__name__)


class ReclaimServer:
    """A thread that calls back whenever the ledger asks this client for memory; asleep otherwise.

    Args:
        ledger: where to sleep on changes.
        client: whose memory it is. It is asked only for what it offers (`client.set_spare`), for what it
            holds over its limit, and for what a recall names; never for what lies below its floor.
        give_back: called on the server's thread with the bytes asked for; frees what it can and releases the
            credit. What it released is read from the ledger. Less than asked, or an exception, means that
            nothing more can go for now: the offer is withdrawn until `set_spare` renews it.

    Closing the client ends the thread.
    """

    def __init__(self, ledger: Ledger, client: LedgerClient, give_back: Callable[[int], object]) -> None:
        self._ledger = ledger
        self._client = client
        self._give_back = give_back
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="kvcached-reclaim", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                generation = self._client.generation
                self._answer()
                # What was just released has changed the generation: then this returns at once, to look again.
                self._ledger.wait(generation, _WAIT_S)
            except Exception:  # noqa: BLE001 - a thread that dies would keep others waiting for ever
                if not self._is_client_open():
                    return
                _log.exception("the ledger could not be served; trying again")
                self._stopping.wait(_WAIT_S)

    def _answer(self) -> None:
        asked_bytes = self._client.asked_bytes()
        if asked_bytes == 0:
            return
        before_bytes = self._client.used_bytes
        try:
            self._give_back(asked_bytes)
        except (Exception, SystemExit):  # noqa: BLE001 - somebody else's code; the thread has to outlive it
            _log.exception("the reclaim callback failed; nothing more is offered until it is offered again")
        if before_bytes - self._client.used_bytes < asked_bytes:
            self._client.set_spare(0)

    def _is_client_open(self) -> bool:
        try:
            return self._client.generation >= 0
        except Misuse:
            return False
