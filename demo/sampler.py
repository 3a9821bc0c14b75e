"""Samples mapped KV memory from outside the engines, out of the kernel's own accounting.

An engine publishes where its reserved range lies; how much of that range is backed by physical memory is read
from `/proc/PID/smaps`. None of our counters takes part.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from demo.movement import MemorySeries
from kvcached._core import Ledger
from kvcached.proc import rss_bytes

INTERVAL_S = 0.2
MAX_SAMPLES = 20_000


class MemorySampler:
    """A thread that samples until it is stopped. `times_s` count from its start."""

    def __init__(self, ledger: Path, models: list[str]) -> None:
        self._ledger = Ledger(str(ledger))
        self._times_s: list[float] = []
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
        return MemorySeries(tuple(self._times_s), {name: tuple(seen) for name, seen in self._mapped.items()})

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
        now = dict.fromkeys(self._mapped, 0)
        for client in self._ledger.snapshot().clients:
            if client.alive and client.name in now and client.range_bytes > 0:
                try:
                    now[client.name] += rss_bytes(client.pid, client.range_base, client.range_bytes)
                except ProcessLookupError:
                    continue  # it ended between the two looks
        for name, value in now.items():
            self._mapped[name].append(value)
        self._times_s.append(self.now_s())
