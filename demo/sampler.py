"""Samples mapped KV memory from outside the engines, out of the kernel's own accounting.

An engine publishes where its reserved range lies; how much of that range is backed by physical memory is read
from `/proc/PID/smaps`. None of our own counters takes part in the figures.

Processes are read one after another, so memory that moves meanwhile could be counted twice. Memory moves only
by way of a release, and the ledger's generation counts releases: a reading during which none happened shows
no more than there was at its end. Another is taken again, and marked as torn when that never helps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from demo.movement import MemorySeries
from kvcached._core import ClientInfo, Ledger, LedgerSnapshot
from kvcached.proc import rss_bytes

INTERVAL_S = 0.2
MAX_SAMPLES = 20_000
MAX_TRIES = 5


@dataclass(frozen=True, slots=True)
class Reading:
    """Mapped bytes per client name. `torn`: memory was given back meanwhile, so the sum may be too high."""

    mapped_bytes: Mapping[str, int]
    torn: bool


def read_memory(ledger: Ledger, max_tries: int = MAX_TRIES) -> Reading:
    """What lies beneath the ranges of all living clients; the last try where each was torn."""
    for _ in range(max_tries):
        reading = _read_once(ledger)
        if not reading.torn:
            break
    return reading


def _read_once(ledger: Ledger) -> Reading:
    before = ledger.snapshot()
    mapped_bytes: dict[str, int] = {}
    for client in before.clients:
        if client.alive and client.range_bytes > 0:
            mapped_bytes[client.name] = mapped_bytes.get(client.name, 0) + _mapped_bytes(client)
    return Reading(mapped_bytes, _gave_back(before, ledger.snapshot()))


def _mapped_bytes(client: ClientInfo) -> int:
    try:
        return rss_bytes(client.pid, client.range_base, client.range_bytes)
    except ProcessLookupError:
        return 0  # it ended between the two looks


def _gave_back(before: LedgerSnapshot, after: LedgerSnapshot) -> bool:
    """Whether anything was released in between.

    The generation rises an instant after a release lowered what its client uses; somebody else may use the
    memory in that instant, so both are looked at.
    """
    if after.generation != before.generation:
        return True
    used_bytes = {client.slot: client.used_bytes for client in after.clients}
    return any(used_bytes.get(client.slot, 0) < client.used_bytes for client in before.clients)


class MemorySampler:
    """A thread that samples until it is stopped. `times_s` count from its start."""

    def __init__(self, ledger: Path, models: list[str]) -> None:
        self._ledger = Ledger(str(ledger))
        self._times_s: list[float] = []
        self._torn: list[bool] = []
        self._mapped: dict[str, list[int]] = {name: [] for name in models}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory sampler", daemon=True)
        self._start_s = time.monotonic()
        self.error: Exception | None = None

    def start(self) -> None:
        """Begin sampling."""
        self._start_s = time.monotonic()
        self._thread.start()

    def now_s(self) -> float:
        """Seconds on the samples' clock."""
        return time.monotonic() - self._start_s

    def stop(self) -> MemorySeries:
        """End sampling and return what was seen. Raises what stopped the sampler early, if anything did."""
        self._stop.set()
        self._thread.join(timeout=10)
        if self.error is not None:
            raise self.error
        mapped_bytes = {name: tuple(seen) for name, seen in self._mapped.items()}
        return MemorySeries(tuple(self._times_s), mapped_bytes, tuple(self._torn))

    def latest(self) -> dict[str, int]:
        """The newest sample; empty before the first."""
        return {name: seen[-1] for name, seen in self._mapped.items() if seen}

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and len(self._times_s) < MAX_SAMPLES:
                self._sample()
                self._stop.wait(INTERVAL_S)
        except Exception as error:  # noqa: BLE001 (handed to whoever calls stop)
            self.error = error

    def _sample(self) -> None:
        reading = read_memory(self._ledger)
        for name, seen in self._mapped.items():
            seen.append(reading.mapped_bytes.get(name, 0))
        self._torn.append(reading.torn)
        self._times_s.append(self.now_s())
