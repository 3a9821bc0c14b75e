"""Change one client of a ledger from outside: find it, set it, wait for what it gives back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcached._core import Ledger
from kvcached.errors import KvcachedError, Misuse
from kvcached.stats import ClientStats, read_ledger

if TYPE_CHECKING:
    from collections.abc import Iterable

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Target:
    """One client of one ledger; if its process ends, nobody who takes its place is hit."""

    path: str
    slot: int
    pid: int

    def set_limit(self, limit_bytes: int | None) -> None:
        """No grant beyond this from its next claim on; None lifts it. LedgerRefused below its floor."""
        Ledger(self.path).set_limit(slot=self.slot, pid=self.pid, limit_bytes=limit_bytes)

    def set_floor(self, floor_bytes: int) -> None:
        """Guarantee so much. LedgerRefused if the floors stop fitting the budget."""
        Ledger(self.path).set_floor(slot=self.slot, pid=self.pid, floor_bytes=floor_bytes)

    def set_priority(self, priority: int) -> None:
        """Higher is more important: asked last, served first."""
        Ledger(self.path).set_priority(slot=self.slot, pid=self.pid, priority=priority)

    def recall(self, nbytes: int, within_s: float) -> tuple[int, int]:
        """Ask for `nbytes` and wait until they are back or `within_s` is over.

        Returns the bytes asked for, which end at its floor, and the bytes that came back: all that it held
        where it leaves meanwhile.
        """
        ledger = Ledger(self.path)
        deadline_s = time.monotonic() + within_s
        before_bytes = self.read().used_bytes
        level_bytes = ledger.recall(slot=self.slot, pid=self.pid, nbytes=nbytes, lapse_s=within_s)
        while (used_bytes := self._used_bytes()) > level_bytes and time.monotonic() < deadline_s:
            ledger.wait(ledger.snapshot().generation, _POLL_S)
        return before_bytes - min(before_bytes, level_bytes), max(0, before_bytes - used_bytes)

    def read(self) -> ClientStats:
        """As it is now. Misuse if it is gone."""
        client = self.look()
        if client is None:
            raise Misuse(f"ledger {self.path}: process {self.pid} is gone")
        return client

    def look(self) -> ClientStats | None:
        """As it is now; None if it is gone."""
        clients = read_ledger(self.path).clients
        return next((one for one in clients if (one.slot, one.pid) == (self.slot, self.pid)), None)

    def _used_bytes(self) -> int:
        client = self.look()
        return 0 if client is None else client.used_bytes


def find_target(client: str, paths: Iterable[str]) -> Target:
    """The one client that `client` names: its name, its pid, or ``@SLOT``.

    Raises Misuse if none or several match, with what would tell them apart, and what could not be read.
    """
    found: list[tuple[Target, ClientStats]] = []
    failures: list[str] = []
    for path in paths:
        try:
            clients = read_ledger(path).clients
        except (KvcachedError, OSError) as error:
            failures.append(f"; not read: {error}")
            continue
        found += [
            (Target(path, stats.slot, stats.pid), stats)
            for stats in clients
            if client in (stats.name, str(stats.pid), f"@{stats.slot}")
        ]
    if len(found) == 1:
        return found[0][0]
    if not found:
        raise Misuse(
            f"no client {client!r}: give a name or a pid as `kvctl list` shows them, or @SLOT as its --json "
            f"does{''.join(failures)}"
        )
    several = "; ".join(
        f"{stats.name} (pid {stats.pid}, {stats.kind}): @{stats.slot} of --ledger {target.path}"
        for target, stats in found
    )
    raise Misuse(f"{len(found)} clients match {client!r}: {several}")
