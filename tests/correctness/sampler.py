"""Watches from outside how much memory lies beneath the engines' KV ranges, by the kernel's own account."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from demo.sampler import Reading, read_memory
from kvcached._core import Ledger

_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of the demo's sampler, which knows when memory moved while it looked."""

    reading: Reading

    @property
    def mapped_bytes(self) -> dict[str, int]:
        """Per client name; each figure is right, whether or not the sum of them is."""
        return dict(self.reading.mapped_bytes)

    @property
    def total_bytes(self) -> int:
        """Over all clients; proves nothing where the reading is torn."""
        return sum(self.reading.mapped_bytes.values())


def peak_bytes(samples: Sequence[Sample]) -> int:
    """The largest total that was there for certain: torn samples show memory twice that moved meanwhile.

    Raises AssertionError where more than half are torn: an overrun could hide among them.
    """
    whole = [sample.total_bytes for sample in samples if not sample.reading.torn]
    assert samples, "nothing was sampled"
    assert 2 * len(whole) >= len(samples), f"{len(samples) - len(whole)} of {len(samples)} samples are torn"
    return max(whole)


class MemorySampler:
    """A context in which a thread samples every living client of a ledger.

    Leaving it raises what stopped the thread early, if anything did.
    """

    def __init__(self, ledger: Path) -> None:
        self._ledger = Ledger(str(ledger))
        self._samples: list[Sample] = []
        self._error: Exception | None = None
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
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.wait(_INTERVAL_S):
                self._samples.append(Sample(read_memory(self._ledger)))
        except Exception as error:  # noqa: BLE001 - handed to whoever leaves the context
            self._error = error
