"""The compiled pool as Python sees it: types, ownership, threads, and rows against a model."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcached import _core

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE_ROWS = 16
ROW_BYTES = 256


def make_geometry(rows: int = 200, stripes: int = 2) -> _core.Geometry:
    return _core.Geometry(
        rows=rows, row_bytes=[ROW_BYTES] * stripes, granularity_bytes=4096, page_bytes=PAGE_ROWS * ROW_BYTES
    )


@pytest.fixture
def pool() -> Iterator[_core.KvPool]:
    made = _core.KvPool(_core.Backend.host(), make_geometry())
    yield made
    made.close()


def take(pool: _core.KvPool, rows: int) -> np.ndarray:
    ids = pool.alloc(rows)
    assert ids is not None
    return ids


def test_rows_are_fresh_int64_arrays_that_never_hold_the_reserved_row(pool: _core.KvPool) -> None:
    assert pool.grow(100)
    ids = take(pool, 100)
    assert ids.dtype == np.int64
    assert ids.flags.c_contiguous
    assert ids.flags.owndata
    assert len(set(ids.tolist())) == 100
    assert 0 not in ids


def test_alloc_never_maps(pool: _core.KvPool) -> None:
    mapped = pool.mapped_bytes
    assert pool.alloc(PAGE_ROWS) is None
    assert pool.mapped_bytes == mapped
    assert take(pool, PAGE_ROWS - 1).size == PAGE_ROWS - 1


@pytest.mark.parametrize(
    "ids",
    [
        np.array([1.0]),
        np.array([1], dtype=np.int32),
        np.array([[1]], dtype=np.int64),
        np.arange(1, 9, dtype=np.int64)[::2],
        np.array([1, 1], dtype=np.int64),
        np.array([0], dtype=np.int64),
        np.array([10**9], dtype=np.int64),
        np.array([-1], dtype=np.int64),
        np.array([9], dtype=np.int64),
    ],
)
def test_free_refuses_what_it_did_not_hand_out(pool: _core.KvPool, ids: np.ndarray) -> None:
    held = take(pool, 8)
    assert held.tolist() == list(range(1, 9))
    with pytest.raises(_core.Misuse):
        pool.free(ids)
    pool.check_invariants()
    assert pool.rows_used == 8
    pool.free(held)


def test_negative_counts_are_misuse(pool: _core.KvPool) -> None:
    for call in (pool.alloc, pool.grow, pool.trim):
        with pytest.raises(_core.Misuse, match="must not be negative"):
            call(-1)


def test_errors_form_one_tree() -> None:
    for error in (_core.OutOfMemory, _core.Unavailable, _core.DriverError, _core.Misuse, _core.LedgerRefused):
        assert issubclass(error, _core.KvcachedError)
        assert error.__module__ == "kvcached._core"
    assert issubclass(_core.OutOfMemory, MemoryError)
    assert issubclass(_core.Misuse, ValueError)


def test_a_pool_keeps_its_client_alive_and_gives_its_credit_back(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    ledger = _core.Ledger(str(tmp_path / "d.ledger"), 1 << 20)
    client = ledger.register(name="pool")
    pool = _core.KvPool(_core.Backend.host(), make_geometry(), client)
    del client
    gc.collect()
    assert pool.grow(50)
    pool.publish()
    (info,) = ledger.snapshot().clients
    assert info.used_bytes == pool.mapped_bytes
    assert (info.rows_used, info.rows_backed) == (0, pool.rows_backed)
    assert info.range_base == pool.base_address
    del pool
    gc.collect()
    assert ledger.snapshot().clients == []
    assert ledger.snapshot().used_bytes == 0


def test_ledger_refusal_is_false_and_the_first_page_is_out_of_memory(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    geometry = make_geometry()
    ledger = _core.Ledger(str(tmp_path / "d.ledger"), 2 * geometry.page_set_bytes)
    first = _core.KvPool(_core.Backend.host(), geometry, ledger.register(name="first"))
    assert first.rows_attainable == 2 * PAGE_ROWS - 1
    assert first.grow(2 * PAGE_ROWS - 1)
    assert not first.grow(2 * PAGE_ROWS)
    client = ledger.register(name="second")
    with pytest.raises(_core.OutOfMemory, match="'second' holds 0 bytes of credit"):
        _core.KvPool(_core.Backend.host(), geometry, client)
    assert first.trim() == geometry.page_set_bytes
    second = _core.KvPool(_core.Backend.host(), geometry, client)
    second.close()
    first.close()


def test_looking_from_another_thread_while_one_maps_is_safe() -> None:
    pool = _core.KvPool(_core.Backend.host(), make_geometry(rows=200_000))
    done = threading.Event()
    seen: list[int] = []

    def look() -> None:
        while not done.is_set():
            stats = pool.stats()
            seen.append(stats.rows_backed)
            assert stats.rows_backed == stats.rows_used + stats.rows_free_backed

    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in range(20):
        assert pool.grow(100_000)
        pool.clear()
    done.set()
    watcher.join()
    pool.check_invariants()
    pool.close()
    assert seen


def test_a_strict_backend_faults_on_unbacked_rows() -> None:
    script = (
        "import ctypes, resource; from kvcached import _core as c\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "g = c.Geometry(rows=200, row_bytes=[256], granularity_bytes=4096, page_bytes=4096)\n"
        "p = c.KvPool(c.Backend.host(strict=True), g)\n"
        "ctypes.memset(p.stripe_address(0), 1, 4096)\n"
        "print('backed', flush=True)\n"
        "ctypes.memset(p.stripe_address(0) + 4096, 1, 1)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.stdout == "backed\n"
    assert result.returncode == -11


def test_a_forked_child_may_not_use_its_parents_pool(pool: _core.KvPool) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            pool.grow(150)
        except _core.Misuse:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert pool.grow(150)


def test_interpreter_exit_with_live_objects_is_quiet(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    script = (
        "import sys; from kvcached import _core as c\n"
        "ledger = c.Ledger(sys.argv[1], 1 << 30); client = ledger.register(name='x')\n"
        "g = c.Geometry(rows=200, row_bytes=[256], granularity_bytes=4096, page_bytes=4096)\n"
        "pool = c.KvPool(c.Backend.host(), g, client, warm_bytes=1 << 20); pool.grow(100); pool.alloc(50)\n"
    )
    path = str(tmp_path / "d.ledger")
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, path],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert _core.Ledger(path).snapshot().used_bytes == 0


def test_importing_the_core_needs_neither_torch_nor_cuda() -> None:
    script = "import sys; import kvcached._core; assert not {'torch', 'sglang'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    needed = subprocess.run(["ldd", _core.__file__], capture_output=True, text=True, check=True).stdout
    assert "cuda" not in needed
    assert "torch" not in needed


def test_every_object_has_a_telling_repr(pool: _core.KvPool, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    ledger = _core.Ledger(str(tmp_path / "d.ledger"), 4096)
    client = ledger.register(name="mod\u00e8le")
    backend = _core.Backend.host()
    spread = _core.VirtualRange(backend, 1 << 20, 1 << 16)
    things = [
        backend,
        backend.capabilities,
        make_geometry(),
        ledger,
        client,
        ledger.snapshot(),
        pool,
        pool.stats(),
    ]
    for thing in [*things, ledger.snapshot().clients[0], spread]:
        assert repr(thing).startswith(type(thing).__name__)
        assert "0x" not in repr(thing)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("alloc"), st.integers(0, 60)),
            st.tuples(st.just("grow"), st.integers(0, 220)),
            st.tuples(st.just("free"), st.integers(0, 60)),
            st.tuples(st.just("trim"), st.integers(0, 60)),
        ),
        max_size=40,
    )
)
def test_contents_survive_any_history(steps: list[tuple[str, int]]) -> None:
    pool = _core.KvPool(_core.Backend.host(strict=True), make_geometry())
    held: dict[int, int] = {}
    stamp = 0

    def cell(row: int, stripe: int) -> ctypes.c_uint64:
        return ctypes.c_uint64.from_address(pool.stripe_address(stripe) + row * ROW_BYTES)

    for verb, count in steps:
        if verb == "alloc":
            ids = pool.alloc(count)
            for row in [] if ids is None else ids.tolist():
                assert row not in held
                stamp += 1
                held[row] = stamp
                cell(row, 0).value = cell(row, 1).value = stamp
        elif verb == "grow":
            assert pool.grow(count) == (count <= 199 - len(held))
        elif verb == "free":
            rows = list(held)[:count]
            pool.free(np.array(rows, dtype=np.int64))
            for row in rows:
                del held[row]
        else:
            pool.trim(count)
        pool.check_invariants()
        for row, value in held.items():
            assert (cell(row, 0).value, cell(row, 1).value) == (value, value)
    pool.close()
