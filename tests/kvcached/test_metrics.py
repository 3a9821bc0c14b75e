"""What a scrape shows of pools and ledgers."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kvcached._core import Backend, Ledger
from kvcached.errors import Misuse
from kvcached.kv_pool import KVCachePool
from kvcached.metrics import LedgerCollector, PoolCollector


def make_pool(**options: object) -> KVCachePool:
    return KVCachePool(Backend.host(), layers=1, rows=1000, row_shape=(8, 64), **options)  # type: ignore[arg-type]


def test_a_scrape_shows_the_figures_of_every_pool_at_that_moment() -> None:
    registry = CollectorRegistry()
    with make_pool() as full, make_pool() as window:
        collector = PoolCollector({"full": full})
        collector.add("window", window)
        registry.register(collector)
        rows = full.alloc(100)
        full.free(rows[:30])
        for name, pool in (("full", full), ("window", window)):
            stats = pool.stats()
            for field in ("rows_total", "rows_used", "rows_free_backed", "rows_attainable", "mapped_bytes"):
                shown = registry.get_sample_value(f"kvcached_pool_{field}", {"pool": name})
                assert shown == getattr(stats, field), field
            for field in ("maps", "unmaps", "allocs", "frees"):
                shown = registry.get_sample_value(f"kvcached_pool_{field}_total", {"pool": name})
                assert shown == getattr(stats, field), field
        assert registry.get_sample_value("kvcached_pool_rows_used", {"pool": "full"}) == 70


def test_pools_that_are_closed_or_gone_are_left_out() -> None:
    registry = CollectorRegistry()
    closed, gone = make_pool(), make_pool()
    registry.register(PoolCollector({"closed": closed, "gone": gone}))
    assert b'"closed"' in generate_latest(registry)
    closed.close()
    del gone
    gc.collect()
    shown = generate_latest(registry)
    assert b"closed" not in shown
    assert b"gone" not in shown


def test_two_pools_may_not_have_one_name() -> None:
    with make_pool() as first, make_pool() as second:
        collector = PoolCollector({"kv": first})
        collector.add("kv", first)
        with pytest.raises(Misuse, match="'kv'"):
            collector.add("kv", second)


def test_a_ledger_is_shown_with_its_clients(ledger_path: str) -> None:
    ledger = Ledger(ledger_path, 100 << 20)
    registry = CollectorRegistry()
    registry.register(LedgerCollector(ledger_path))
    with make_pool(client=ledger.register(name="a", limit_bytes=50 << 20)) as pool:
        pool.alloc(10)
        (info,) = ledger.snapshot().clients
        labels = {"device": "host0", "name": "a", "pid": str(info.pid)}
        for field in ("used_bytes", "floor_bytes", "limit_bytes", "rows_used", "rows_backed"):
            assert registry.get_sample_value(f"kvcached_client_{field}", labels) == getattr(info, field), (
                field
            )
        assert registry.get_sample_value("kvcached_ledger_budget_bytes", {"device": "host0"}) == 100 << 20
        shown = registry.get_sample_value("kvcached_ledger_used_bytes", {"device": "host0"})
        assert shown == pool.mapped_bytes > 0


def test_importing_the_collectors_needs_no_prometheus_client() -> None:
    script = (
        "import sys; import kvcached.metrics; assert not {'prometheus_client', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
