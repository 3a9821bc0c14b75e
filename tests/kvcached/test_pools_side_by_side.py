"""Two pools of different geometry in one process, one budget: random lives against a model of both."""

from __future__ import annotations

import gc
import os
import tempfile
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from prometheus_client import CollectorRegistry

from kvcached import proc
from kvcached._core import Backend, Ledger
from kvcached.errors import Misuse
from kvcached.kv_pool import KVCachePool
from kvcached.metrics import LedgerCollector, PoolCollector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcached.config import PagePolicy

GEOMETRIES: Mapping[str, Mapping[str, object]] = {
    "full": {"layers": 3, "rows": 600, "row_shape": (2, 32), "page_bytes": 4096},
    "window": {
        "layers": 2,
        "rows": 150,
        "row_shape": (4, 16),
        "v_row_shape": (3, 8),
        "dtype": "float32",
        "layout": "token_major",
        "page_bytes": 16384,
        "reserved_rows": 3,
    },
}
NAMES = st.sampled_from(sorted(GEOMETRIES))


def make_pool(name: str, **options: object) -> KVCachePool:
    return KVCachePool(Backend.host(), **{**GEOMETRIES[name], **options})  # type: ignore[arg-type]


class SideBySide(RuleBasedStateMachine):
    """A hybrid model's pools: what happens to one must show in it alone, wherever one looks."""

    @initialize(budget_kib=st.integers(200, 1200), policy=st.sampled_from(["best_fit", "most_filled"]))
    def build(self, budget_kib: int, policy: PagePolicy) -> None:
        # One file per example: a failing one must not spoil the next.
        folder = tempfile.mkdtemp(dir=os.environ["XDG_RUNTIME_DIR"])
        self.ledger = Ledger(f"{folder}/host0.ledger", budget_kib << 10)
        self.clients = {name: self.ledger.register(name=name) for name in GEOMETRIES}
        self.pools = {
            name: make_pool(name, client=client, page_policy=policy) for name, client in self.clients.items()
        }
        self.held: dict[str, dict[int, float]] = {name: {} for name in GEOMETRIES}
        self.stamp = 0
        self.registry = CollectorRegistry()
        self.registry.register(PoolCollector(self.pools))
        self.registry.register(LedgerCollector(f"{folder}/host0.ledger"))

    @rule(name=NAMES, count=st.integers(0, 200))
    def alloc(self, name: str, count: int) -> None:
        pool, held = self.pools[name], self.held[name]
        before = pool.stats()
        rows = pool.try_alloc(count)
        assert (rows is not None) == (count <= before.rows_obtainable)
        if rows is None:
            assert (pool.stats().rows_backed, pool.mapped_bytes) == (before.rows_backed, before.mapped_bytes)
            return
        assert not held.keys() & set(rows.tolist())
        for row in rows.tolist():
            self.stamp += 1
            held[row] = float(self.stamp % 256)  # exact in every element type
        stamps = torch.tensor([held[row] for row in rows.tolist()])
        for tensor in (*pool.k, *pool.v):
            tensor[rows] = stamps.to(tensor.dtype).view(-1, *[1] * (tensor.ndim - 1))

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, held in self.held.items() if held)))
        rows = data.draw(st.lists(st.sampled_from(sorted(self.held[name])), unique=True))
        self.pools[name].free(torch.tensor(rows, dtype=torch.int64))
        for row in rows:
            del self.held[name][row]

    @rule(name=NAMES, data=st.data())
    def free_what_is_not_its_own(self, name: str, data: st.DataObject) -> None:
        """Rows of the other pool, reserved ones, such as do not exist, and one twice."""
        pool, held = self.pools[name], self.held[name]
        others = {row for other in self.held.values() for row in other} - held.keys()
        foreign = data.draw(st.sampled_from(sorted(others | {0, -1, pool.geometry.rows, 1 << 40})))
        own = data.draw(st.lists(st.sampled_from(sorted(held)), unique=True)) if held else []
        for wrong in ([*own, foreign], [foreign, *own], *([[*own, own[0]]] if own else [])):
            with pytest.raises(Misuse, match="free: row"):
                pool.free(wrong)

    @rule(name=NAMES, keep=st.integers(0, 100))
    def trim(self, name: str, keep: int) -> None:
        pool = self.pools[name]
        before_bytes = pool.mapped_bytes
        assert pool.trim(keep) == before_bytes - pool.mapped_bytes

    @rule(name=NAMES, limit_kib=st.none() | st.integers(0, 900))
    def limit(self, name: str, limit_kib: int | None) -> None:
        client = self.clients[name]
        client.set_limit(None if limit_kib is None else max(limit_kib << 10, client.floor_bytes))

    @invariant()
    def each_keeps_its_own_rows_memory_and_figures(self) -> None:
        if not hasattr(self, "pools"):
            return
        shown = {client.name: client for client in self.ledger.snapshot().clients}
        assert sum(client.used_bytes for client in shown.values()) <= self.ledger.budget_bytes
        for name, pool in self.pools.items():
            pool.check_invariants()
            stats, client, core = pool.stats(), shown[name], pool.core
            assert stats.rows_used == len(self.held[name]) == client.rows_used
            assert stats.rows_backed == client.rows_backed
            assert stats.mapped_bytes == client.used_bytes
            assert (client.range_base, client.range_bytes) == (
                core.base_address,
                pool.geometry.reservation_bytes,
            )
            assert proc.rss_bytes(os.getpid(), client.range_base, client.range_bytes) == stats.mapped_bytes
            assert self._sample("kvcached_pool_used_rows", pool=name) == stats.rows_used
            labels = {"device": "host0", "kind": "kv", "pid": str(os.getpid()), "slot": str(client.slot)}
            assert self._sample("kvcached_client_used_bytes", name=name, **labels) == stats.mapped_bytes
            rows = torch.tensor(sorted(self.held[name]), dtype=torch.int64)
            stamps = torch.tensor([self.held[name][row] for row in rows.tolist()])
            for tensor in (*pool.k, *pool.v):
                found = tensor[rows].float().flatten(1)
                assert torch.equal(found, stamps.view(-1, 1).expand_as(found))

    def _sample(self, metric: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(metric, labels)

    def teardown(self) -> None:
        for pool in getattr(self, "pools", {}).values():
            pool.close()


TestSideBySide = SideBySide.TestCase
TestSideBySide.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_client_pays_for_one_pool_at_a_time(ledger_path: str) -> None:
    """Two pools of one client would overwrite each other's range, rows and floor."""
    ledger = Ledger(ledger_path, 64 << 20)
    client = ledger.register(name="engine")
    first = make_pool("full", client=client)
    used_bytes = client.used_bytes
    with pytest.raises(Misuse, match="register one for each pool"):
        make_pool("window", client=client)
    assert client.used_bytes == used_bytes == client.floor_bytes
    first.close()
    del first
    gc.collect()
    with make_pool("window", client=client) as second:
        assert second.mapped_bytes == client.used_bytes
