"""KV memory of one device as the shared ledger shows it from outside the engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from kvcached._core import ClientInfo, LedgerSnapshot


@dataclass(frozen=True, slots=True)
class KvUse:
    """One engine's part: credit it holds, and the most it could still use this instant, both in bytes."""

    name: str
    pid: int
    used_bytes: int
    floor_bytes: int
    limit_bytes: int | None
    rows_used: int
    rows_backed: int
    obtainable_bytes: int


class KvView:
    """Creates the device's ledger with its budget, holds it open, and reads it."""

    def __init__(self, path: Path, budget_bytes: int) -> None:
        """Raises the ledger's own errors when the file cannot be used."""
        from kvcached._core import Ledger  # compiled

        self._ledger = Ledger(str(path), budget_bytes)
        self.budget_bytes = budget_bytes

    def read(self) -> dict[str, KvUse]:
        """Living clients by name."""
        snapshot = self._ledger.snapshot()
        alive = [client for client in snapshot.clients if client.alive]
        return {client.name: _use(client, alive, snapshot) for client in alive}


def _use(client: ClientInfo, alive: list[ClientInfo], snapshot: LedgerSnapshot) -> KvUse:
    others = sum(max(other.used_bytes, other.floor_bytes) for other in alive if other.slot != client.slot)
    obtainable = snapshot.budget_bytes - others - client.used_bytes
    if client.limit_bytes is not None:
        obtainable = min(obtainable, client.limit_bytes - client.used_bytes)
    return KvUse(
        name=client.name,
        pid=client.pid,
        used_bytes=client.used_bytes,
        floor_bytes=client.floor_bytes,
        limit_bytes=client.limit_bytes,
        rows_used=client.rows_used,
        rows_backed=client.rows_backed,
        obtainable_bytes=max(0, obtainable),
    )
