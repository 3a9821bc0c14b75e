"""Collectors for Prometheus: ``REGISTRY.register(PoolCollector({"chat": cache}))``.

Figures are read when they are scraped, so nothing is counted twice and allocating costs nothing more. A
scrape takes one snapshot per pool and ledger: counters in memory, nothing that grows with rows or pages.
Only :meth:`collect` needs prometheus_client (the extra ``metrics``), and only a registry of it calls that.

A registry takes one collector of each kind, as metric names belong to one: give it all pools, all ledgers.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Protocol

from kvcached._core import Ledger
from kvcached.errors import KvcachedError, Misuse
from kvcached.ledgers import checked_path, device_of, find_ledgers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from kvcached._core import LedgerSnapshot, PoolStats

# Field of the snapshot -> name of the metric, unit last, and what it says.
_POOL_GAUGES = {
    "rows_total": ("capacity_rows", "Rows that can be handed out at all."),
    "rows_used": ("used_rows", "Rows handed out."),
    "rows_free_backed": ("free_backed_rows", "Rows that could be handed out without mapping a page."),
    "rows_obtainable": ("obtainable_rows", "Free rows after the largest possible growth."),
    "rows_attainable": ("attainable_rows", "The most rows that could ever be in use at once."),
    "mapped_bytes": ("mapped_bytes", "Physical memory mapped."),
}
_POOL_COUNTERS = {
    "maps": ("mapped_pages", "Pages mapped since the start."),
    "unmaps": ("unmapped_pages", "Pages unmapped since the start."),
    "allocs": ("allocated_rows", "Rows handed out since the start."),
    "frees": ("freed_rows", "Rows taken back since the start."),
}
_LEDGER_GAUGES = {
    "budget_bytes": "What all clients of the device may hold together.",
    "used_bytes": "What they hold.",
}
_CLIENT_LABELS = ("device", "name", "kind", "pid", "slot")
_CLIENT_GAUGES = {
    "used_bytes": ("used_bytes", "Memory credited to a client."),
    "floor_bytes": ("floor_bytes", "Memory guaranteed to a client."),
    "limit_bytes": ("limit_bytes", "The most a client may hold; absent where there is no limit."),
    "want_bytes": ("want_bytes", "Memory that a client was refused and still wants."),
    "asked_bytes": ("asked_bytes", "Memory that a client should give back now."),
    "priority": ("priority", "Who is served first and asked last."),
    "rows_used": ("used_rows", "Rows that a client has handed out."),
    "rows_backed": ("backed_rows", "Rows of a client that have memory."),
}


class HasStats(Protocol):
    """A ``KVCachePool``, or the ``KvPool`` beneath an engine."""

    def stats(self) -> PoolStats:
        """All figures of one instant."""


class PoolCollector:
    """``kvcached_pool_*`` of pools in this process, by name; a pool that is closed or gone is left out."""

    def __init__(self, pools: Mapping[str, HasStats] | None = None) -> None:
        self._pools = weakref.WeakValueDictionary(dict(pools or {}))
        self._lock = threading.Lock()  # registries scrape on threads of their own

    def add(self, name: str, pool: HasStats) -> None:
        """Show one more pool. Misuse where the name is taken by another that lives."""
        with self._lock:
            if self._pools.setdefault(name, pool) is not pool:
                raise Misuse(f"there is a pool named {name!r} already: give each its own name")

    def collect(self) -> Iterator[Metric]:
        """Called by a registry at each scrape."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        stats = dict(self._stats())
        for field, (metric, what) in _POOL_GAUGES.items():
            gauge = GaugeMetricFamily(f"kvcached_pool_{metric}", what, labels=["pool"])
            for name, figures in stats.items():
                gauge.add_metric([name], getattr(figures, field))
            yield gauge
        for field, (metric, what) in _POOL_COUNTERS.items():
            counter = CounterMetricFamily(f"kvcached_pool_{metric}", what, labels=["pool"])
            for name, figures in stats.items():
                counter.add_metric([name], getattr(figures, field))
            yield counter

    def _stats(self) -> Iterator[tuple[str, PoolStats]]:
        with self._lock:
            pools = sorted(self._pools.items())
        for name, pool in pools:
            try:
                yield name, pool.stats()
            except Misuse:
                continue  # closed, and not yet collected


class LedgerCollector:
    """``kvcached_ledger_*`` of devices and ``kvcached_client_*`` of everyone who holds memory on them.

    Args:
        paths: the ledgers' files; all of this user's when none is given, looked for at each scrape.

    Raises:
        Misuse: two of them have the same file name, which is the label ``device``.
    """

    def __init__(self, *paths: str) -> None:
        self._paths = {device_of(path): path for path in paths}
        if len(self._paths) != len(paths):
            raise Misuse(f"ledgers must have file names of their own to be told apart: {', '.join(paths)}")

    def collect(self) -> Iterator[Metric]:
        """Called by a registry at each scrape."""
        from prometheus_client.metrics_core import GaugeMetricFamily

        ledgers = {device: _snapshot(path) for device, path in sorted(self._current_paths().items())}
        readable = GaugeMetricFamily(
            "kvcached_ledger_readable",
            "1 where a device's ledger can be read, else 0.",
            labels=["device"],
        )
        for device, ledger in ledgers.items():
            readable.add_metric([device], ledger is not None)
        yield readable
        for field, what in _LEDGER_GAUGES.items():
            gauge = GaugeMetricFamily(f"kvcached_ledger_{field}", what, labels=["device"])
            for device, ledger in ledgers.items():
                if ledger is not None:
                    gauge.add_metric([device], getattr(ledger, field))
            yield gauge
        for field, (metric, what) in _CLIENT_GAUGES.items():
            gauge = GaugeMetricFamily(f"kvcached_client_{metric}", what, labels=_CLIENT_LABELS)
            for device, ledger in ledgers.items():
                for client in ledger.clients if ledger is not None else ():
                    value = getattr(client, field)
                    if client.alive and value is not None:
                        # A process may have several clients of one name: only its slot makes one unique.
                        labels = [device, client.name, client.kind, str(client.pid), str(client.slot)]
                        gauge.add_metric(labels, value)
            yield gauge

    def _current_paths(self) -> dict[str, str]:
        try:
            return self._paths or {device_of(path): path for path in find_ledgers()}
        except (KvcachedError, OSError):
            return {}  # not ours, or not readable: what else the registry shows must not suffer


def _snapshot(path: str) -> LedgerSnapshot | None:
    """None where the file is missing, unsafe, oddly named or no ledger: it must not hide the others."""
    try:
        return Ledger(checked_path(path)).snapshot()
    except KvcachedError:
        return None
