"""The warm reserve as Python sees it: memory is ready before a burst and gone when nobody needs it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvcached
from kvcached import _core
from kvcached.kv_pool import KVCachePool

ROWS_PER_PAGE = 16
BURST_ROWS = 4 * ROWS_PER_PAGE
PATIENCE_S = 30.0


@pytest.fixture
def client(tmp_path: Path) -> Iterator[_core.LedgerClient]:
    tmp_path.chmod(0o700)
    ledger = _core.Ledger(str(tmp_path / "host0.ledger"), budget_bytes=64 << 20)
    client = ledger.register(name="warm")
    yield client
    client.close()


@pytest.fixture
def pool(client: _core.LedgerClient) -> Iterator[KVCachePool]:
    with KVCachePool(
        _core.Backend.host(),
        layers=2,
        rows=4096,
        row_shape=(256 // ROWS_PER_PAGE, 8),
        dtype="float16",
        client=client,
        page_bytes=4096,
        warm_bytes=1 << 20,
    ) as pool:
        assert pool.geometry.rows_per_page == ROWS_PER_PAGE
        yield pool


def await_empty(pool: KVCachePool, pages: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while pool.core.pages_empty != pages:
        assert time.monotonic() < deadline_s, f"{pool.core.pages_empty} pages are empty, not {pages}"
        time.sleep(0.001)


def test_a_burst_finds_its_memory_ready(pool: KVCachePool, client: _core.LedgerClient) -> None:
    assert pool.core.warm_pages == 0
    pool.alloc(BURST_ROWS)
    await_empty(pool, 6)  # the burst and half of it
    assert pool.core.warm_pages == 6
    maps = pool.stats().maps
    rows = pool.core.alloc(BURST_ROWS)  # does not map
    assert rows is not None
    assert maps == 1 + 4 + 6  # the padding page, the first burst, the reserve
    await_empty(pool, 6)
    assert client.used_bytes == pool.mapped_bytes == (1 + 8 + 6) * pool.geometry.page_set_bytes


def test_freed_rows_stay_warm_as_far_as_bursts_need_them(pool: KVCachePool) -> None:
    rows = pool.alloc(BURST_ROWS)
    await_empty(pool, 6)
    pool.free(rows)
    assert pool.core.pages_empty == 6


def test_a_trim_to_nothing_sends_it_to_rest(pool: KVCachePool, client: _core.LedgerClient) -> None:
    rows = pool.alloc(BURST_ROWS)
    await_empty(pool, 6)
    pool.free(rows)
    pool.trim()
    assert pool.core.pages_empty == 0
    assert client.used_bytes == pool.geometry.page_set_bytes
    pool.alloc(2 * ROWS_PER_PAGE)
    await_empty(pool, 6)  # awake again, with what it remembers


def test_a_pool_that_was_refused_gets_what_lies_idle_in_another(tmp_path: Path) -> None:
    """Neither says more than what it was built with: no warm bytes, no wants, no offers."""
    shape = {"layers": 2, "rows": 4096, "row_shape": (128,), "page_bytes": 4096, "warm_rows": 4096}
    place = {"ledger_path": str(tmp_path / "runtime" / "host0.ledger"), "budget_bytes": 64 * 4 * 4096}
    with (
        kvcached.alloc_kvcache(name="idle", **shape, **place) as idle,  # type: ignore[arg-type]
        kvcached.alloc_kvcache(name="asks", **shape, **place) as asks,  # type: ignore[arg-type]
    ):
        idle.free(idle.alloc(60 * ROWS_PER_PAGE))
        assert asks.try_alloc(30 * ROWS_PER_PAGE) is None
        assert _core.Ledger(place["ledger_path"]).snapshot().clients[1].want_bytes > 0  # type: ignore[arg-type]
        deadline_s = time.monotonic() + PATIENCE_S
        while (rows := asks.try_alloc(30 * ROWS_PER_PAGE)) is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        assert _core.Ledger(place["ledger_path"]).snapshot().clients[1].want_bytes == 0  # type: ignore[arg-type]
        assert asks.try_alloc(5000) is None  # more rows than it has: nobody's memory would help
        assert _core.Ledger(place["ledger_path"]).snapshot().clients[1].want_bytes == 0  # type: ignore[arg-type]
        asks.free(rows)


def test_closing_a_pool_while_it_fills_leaves_nothing(client: _core.LedgerClient, pool: KVCachePool) -> None:
    for _ in range(20):
        core = _core.KvPool(_core.Backend.host(), pool.geometry, client, warm_bytes=1 << 20)
        assert core.grow(BURST_ROWS)
        assert core.alloc(BURST_ROWS) is not None
        core.close()
    assert client.used_bytes == pool.mapped_bytes


def test_a_forked_child_is_refused_and_does_not_hang(pool: KVCachePool) -> None:
    pool.alloc(BURST_ROWS)  # the thread may hold the pool's lock just now
    child = os.fork()
    if child == 0:
        try:
            pool.core.alloc(1)
        except _core.Misuse:
            os._exit(0)
        os._exit(1)
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline_s:
            os.kill(child, 9)
        time.sleep(0.001)
    assert os.waitstatus_to_exitcode(status) == 0
