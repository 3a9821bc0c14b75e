"""Frozen snapshots of ledgers, with the kernel's own account beside the clients' claims."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from kvcached import proc
from kvcached._core import ClientInfo, Ledger
from kvcached.ledgers import checked_path, device_of


@dataclass(frozen=True, slots=True)
class ClientStats:
    """One process holding memory on a device."""

    slot: int
    pid: int
    name: str
    kind: str
    """What it holds: ``kv``, ``weights`` or ``other``; all kinds pay from the same budget."""
    used_bytes: int
    floor_bytes: int
    limit_bytes: int | None
    priority: int
    spare_bytes: int
    """Of `used_bytes`, what it says it could give back without hurting running work."""
    want_bytes: int
    """Refused to it and still wanted."""
    asked_bytes: int
    """What it should give back now."""
    rows_used: int
    rows_backed: int
    range_base: int
    range_bytes: int
    mapped_bytes: int | None
    """Resident bytes of the published range as the kernel reports them; None where it cannot (CUDA, say)."""


@dataclass(frozen=True, slots=True)
class LedgerStats:
    """One device's budget and who holds how much of it."""

    path: str
    device: str
    budget_bytes: int
    used_bytes: int
    used_bytes_by_kind: dict[str, int]
    clients: tuple[ClientStats, ...]

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return asdict(self)


def read_ledger(path: str) -> LedgerStats:
    """Snapshot of one ledger; dead clients are reaped on the way.

    Raises Misuse when the file is missing, unsafe or no ledger.
    """
    snapshot = Ledger(checked_path(path)).snapshot()
    device = device_of(path)
    clients = tuple(
        _client(info, on_host=not device.startswith("cuda")) for info in snapshot.clients if info.alive
    )
    by_kind: dict[str, int] = {}
    for client in clients:
        by_kind[client.kind] = by_kind.get(client.kind, 0) + client.used_bytes
    return LedgerStats(path, device, snapshot.budget_bytes, snapshot.used_bytes, by_kind, clients)


def _client(info: ClientInfo, *, on_host: bool) -> ClientStats:
    return ClientStats(
        slot=info.slot,
        pid=info.pid,
        name=info.name,
        kind=info.kind,
        used_bytes=info.used_bytes,
        floor_bytes=info.floor_bytes,
        limit_bytes=info.limit_bytes,
        priority=info.priority,
        spare_bytes=info.spare_bytes,
        want_bytes=info.want_bytes,
        asked_bytes=info.asked_bytes,
        rows_used=info.rows_used,
        rows_backed=info.rows_backed,
        range_base=info.range_base,
        range_bytes=info.range_bytes,
        mapped_bytes=_mapped_bytes(info) if on_host else None,
    )


def _mapped_bytes(info: ClientInfo) -> int | None:
    if info.range_bytes == 0:
        return None
    try:
        return proc.rss_bytes(info.pid, info.range_base, info.range_bytes)
    except (ProcessLookupError, PermissionError):
        return None
