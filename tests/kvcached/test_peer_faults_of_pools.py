"""Faults that a comparable project had in its pools: each must stay impossible here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvcached import proc
from kvcached._core import Backend, Geometry, KvPool, Ledger
from kvcached.kv_pool import KVCachePool

if TYPE_CHECKING:
    from conftest import StartChild

PAGE_ROWS = 16


def make_geometry(rows: int) -> Geometry:
    return Geometry(rows=rows, row_bytes=[256] * 2, granularity_bytes=4096, page_bytes=4096)


def resident_bytes(pool: KvPool) -> int:
    return proc.rss_bytes(os.getpid(), pool.base_address, pool.geometry.reservation_bytes)


def test_peer_fault_01_a_second_pool_maps_into_its_own_range() -> None:
    """There, the second group's map callback was the first one's: its pages came into the first range."""
    pools = [KvPool(Backend.host(), make_geometry(400)) for _ in range(3)]
    for pool in reversed(pools):
        before = [resident_bytes(other) for other in pools]
        assert pool.grow(300)
        after = [resident_bytes(other) for other in pools]
        grown = [number for number, other in enumerate(pools) if after[number] != before[number]]
        assert [pools[number] for number in grown] == [pool]
        assert resident_bytes(pool) == pool.mapped_bytes


def test_peer_fault_02_a_second_pool_leaves_the_first_its_size(
    ledger_path: str, start_child: StartChild
) -> None:
    """There, pools shared one segment by name: making the second shrank the first from 512 to 16 pages."""
    ledger = Ledger(ledger_path, 1 << 30)
    first = KvPool(Backend.host(), make_geometry(512 * PAGE_ROWS), ledger.register(name="same"))
    second = KvPool(Backend.host(), make_geometry(16 * PAGE_ROWS), ledger.register(name="same"))
    child = start_child(
        """
        import sys
        from kvcached._core import Backend, Geometry, KvPool, Ledger
        geometry = Geometry(rows=64, row_bytes=[256], granularity_bytes=4096, page_bytes=4096)
        pool = KvPool(Backend.host(), geometry, Ledger(sys.argv[1]).register(name="same"))
        print(pool.rows_total)
        """,
        ledger_path,
    )
    assert child.line() == "63"
    assert child.end() == 0
    for pool in (first, second):
        assert pool.rows_attainable == pool.rows_total == pool.geometry.rows - 1
        assert pool.grow(pool.rows_total)
        assert pool.alloc(pool.rows_total) is not None
        pool.check_invariants()


def test_peer_fault_04_a_limit_above_the_reservation_changes_nothing(ledger_path: str) -> None:
    """There, raising the limit above what was reserved aborted the process in unmap."""
    ledger = Ledger(ledger_path, 1 << 40)
    client = ledger.register(name="a", limit_bytes=1 << 20)
    pool = KvPool(Backend.host(), make_geometry(100 * PAGE_ROWS), client)
    for limit_bytes in (1 << 39, None, 1 << 20):
        client.set_limit(limit_bytes)
        assert pool.rows_attainable == pool.rows_total
        assert not pool.grow(pool.rows_total + 1)
        assert pool.grow(pool.rows_total)
        rows = pool.alloc(pool.rows_total)
        assert rows is not None
        pool.free(rows)
        assert pool.trim() == 99 * pool.geometry.page_set_bytes
        pool.check_invariants()
        assert client.used_bytes == pool.mapped_bytes == pool.geometry.page_set_bytes


def test_peer_fault_05_pages_that_left_and_came_back_are_handed_out_once(ledger_path: str) -> None:
    """There, shrinking and then growing handed the same page ids out twice."""
    ledger = Ledger(ledger_path, 1 << 30)
    client = ledger.register(name="a")
    pool = KvPool(Backend.host(), make_geometry(64 * PAGE_ROWS), client)
    held: set[int] = set()
    for round_, (limit_pages, free_every) in enumerate([(64, 2), (20, 3), (64, 2), (33, 5), (64, 3)]):
        client.set_limit(limit_pages * pool.geometry.page_set_bytes)
        keep = {row for row in held if row // PAGE_ROWS % free_every}
        pool.free(np.array(sorted(held - keep), dtype=np.int64))
        held = keep
        pool.trim()
        wanted = min(pool.rows_obtainable, 40 * (round_ + 5))
        assert pool.grow(wanted)
        rows = pool.alloc(wanted)
        assert rows is not None
        assert len(set(rows.tolist())) == wanted
        assert not held & set(rows.tolist())
        held |= set(rows.tolist())
        pool.check_invariants()
        assert pool.rows_used == len(held)
    assert pool.stats().unmaps > 0


def test_peer_fault_11_a_pool_that_cannot_serve_says_none() -> None:
    """There, a miss with pages of one token raised a TypeError."""
    rows_of_a_page = KvPool(
        Backend.host(), Geometry(rows=9, row_bytes=[4096], granularity_bytes=4096, page_bytes=4096)
    )
    assert rows_of_a_page.geometry.rows_per_page == 1
    assert rows_of_a_page.alloc(1) is None
    assert not rows_of_a_page.grow(9)
    with KVCachePool(
        Backend.host(), layers=1, rows=8, row_shape=(1024,), dtype=torch.float32, page_bytes=4096
    ) as cache:
        assert cache.geometry.rows_per_page == 1
        assert cache.try_alloc(9) is None
        held = cache.try_alloc(8)
        assert held is not None
        assert cache.try_alloc(1) is None
        cache.free(held)
        assert cache.try_alloc(1) is not None
