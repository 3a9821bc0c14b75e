"""Watches from outside how much memory lies beneath the engines' KV ranges, by the kernel's own account."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kvcached import proc
from kvcached._core import Ledger

_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """Mapped bytes per client name at nearly one instant."""

    mapped_bytes: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """Over all clients."""
        return sum(self.mapped_bytes.values())


class MemorySampler:
    """A context in which a thread samples every living client of a ledger.

    Processes are read one after another, so memory that moves meanwhile could be counted twice. Each sample
    therefore reads them forth and back and keeps the smaller figure: it never shows more than there was.
    """

    def __init__(self, ledger: Path) -> None:
        self._ledger = str(ledger)
        self._samples: list[Sample] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)

    @property
    def samples(self) -> list[Sample]:
        """What was seen so far, oldest first."""
        return list(self._samples)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self._samples.append(sample(self._ledger))


def sample(ledger: str) -> Sample:
    """One sample of every client whose range is published."""
    clients = [client for client in Ledger(ledger).snapshot().clients if client.alive and client.range_bytes]
    seen: dict[str, int] = {}
    for client in [*clients, *reversed(clients)]:
        try:
            mapped_bytes = proc.rss_bytes(client.pid, client.range_base, client.range_bytes)
        except ProcessLookupError:
            mapped_bytes = 0  # it ended while we looked
        seen[client.name] = min(mapped_bytes, seen.get(client.name, mapped_bytes))
    return Sample(seen)
