"""Collectors for Prometheus: ``REGISTRY.register(PoolCollector({"chat": cache}))``.

Figures are read when they are scraped, so nothing is counted twice and allocating costs nothing more. Only
:meth:`collect` needs prometheus_client (the extra ``metrics``), and only a registry of it calls that.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol

from kvcached.errors import Misuse
from kvcached.stats import read_ledger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from kvcached._core import PoolStats

_POOL_GAUGES = {
    "rows_total": "Rows that can be handed out at all.",
    "rows_used": "Rows handed out.",
    "rows_free_backed": "Rows that could be handed out without mapping a page.",
    "rows_obtainable": "Free rows after the largest possible growth.",
    "rows_attainable": "The most rows that could ever be in use at once.",
    "mapped_bytes": "Physical memory mapped.",
}
_POOL_COUNTERS = {
    "maps": "Pages mapped.",
    "unmaps": "Pages unmapped.",
    "allocs": "Rows handed out since the start.",
    "frees": "Rows taken back since the start.",
}
_CLIENT_GAUGES = {
    "used_bytes": "Memory credited to a client.",
    "floor_bytes": "Memory guaranteed to a client.",
    "limit_bytes": "The most a client may hold; absent where there is no limit.",
    "rows_used": "Rows that a client has handed out.",
    "rows_backed": "Rows of a client that have memory.",
}


class HasStats(Protocol):
    """A ``KVCachePool``, or the ``KvPool`` beneath an engine."""

    def stats(self) -> PoolStats:
        """All figures of one instant."""


class PoolCollector:
    """``kvcached_pool_*`` of pools in this process, by name; a pool that is closed or gone is left out."""

    def __init__(self, pools: Mapping[str, HasStats] | None = None) -> None:
        self._pools = weakref.WeakValueDictionary(dict(pools or {}))

    def add(self, name: str, pool: HasStats) -> None:
        """Show one more pool. Misuse where the name is taken by another that lives."""
        if self._pools.setdefault(name, pool) is not pool:
            raise Misuse(f"there is a pool named {name!r} already: give each its own name")

    def collect(self) -> Iterator[Metric]:
        """Called by a registry at each scrape."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        stats = dict(self._stats())
        for field, what in _POOL_GAUGES.items():
            gauge = GaugeMetricFamily(f"kvcached_pool_{field}", what, labels=["pool"])
            for name, figures in stats.items():
                gauge.add_metric([name], getattr(figures, field))
            yield gauge
        for field, what in _POOL_COUNTERS.items():
            counter = CounterMetricFamily(f"kvcached_pool_{field}", what, labels=["pool"])
            for name, figures in stats.items():
                counter.add_metric([name], getattr(figures, field))
            yield counter

    def _stats(self) -> Iterator[tuple[str, PoolStats]]:
        for name, pool in sorted(self._pools.items()):
            try:
                yield name, pool.stats()
            except Misuse:
                continue  # closed, and not yet collected


class LedgerCollector:
    """``kvcached_ledger_*`` of one device's ledger and ``kvcached_client_*`` of every process in it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def collect(self) -> Iterator[Metric]:
        """Called by a registry at each scrape. Misuse where the ledger is gone."""
        from prometheus_client.metrics_core import GaugeMetricFamily

        ledger = read_ledger(self._path)
        for field, what, nbytes in (
            ("budget_bytes", "The device's budget.", ledger.budget_bytes),
            ("used_bytes", "What all clients hold of it.", ledger.used_bytes),
        ):
            gauge = GaugeMetricFamily(f"kvcached_ledger_{field}", what, labels=["device"])
            gauge.add_metric([ledger.device], nbytes)
            yield gauge
        for field, what in _CLIENT_GAUGES.items():
            gauge = GaugeMetricFamily(f"kvcached_client_{field}", what, labels=["device", "name", "pid"])
            for client in ledger.clients:
                value = getattr(client, field)
                if value is not None:
                    gauge.add_metric([ledger.device, client.name, str(client.pid)], value)
            yield gauge
