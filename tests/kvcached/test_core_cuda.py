"""The CUDA backend through Python, over the libcuda stand-in, each test in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.standin import build_standin

PRELUDE = """
import ctypes, sys
import numpy as np
from kvcached import _core as c
c.set_libcuda_path(sys.argv[1])
"""


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_standin(tmp_path_factory.mktemp("standin"))


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_pool_on_the_standin_lives_and_leaves_nothing(standin: Path) -> None:
    result = run(
        """
assert c.cuda_unavailable_reason() is None
backend = c.Backend.cuda(1)
facts = backend.capabilities
assert (facts.kind, facts.device, facts.strict) == ("cuda", 1, True)
assert facts.granularity_bytes == facts.default_page_bytes == 2 << 20
geometry = c.Geometry(rows=2000, row_bytes=[8192] * 2, granularity_bytes=2 << 20, page_bytes=2 << 20)
pool = c.KvPool(backend, geometry)
assert pool.grow(600)
ids = pool.alloc(600)
for stripe in range(2):
    for row in ids.tolist():
        ctypes.c_uint64.from_address(pool.stripe_address(stripe) + row * 8192).value = row
    for row in ids.tolist():
        assert ctypes.c_uint64.from_address(pool.stripe_address(stripe) + row * 8192).value == row
pool.free(ids)
assert pool.trim() == pool.stats().unmaps * geometry.page_set_bytes
pool.close()
del backend, pool
state = (ctypes.c_long * 7)()
ctypes.CDLL(sys.argv[1]).standin_state(state)
assert list(state) == [0] * 7, list(state)
""",
        str(standin),
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_a_full_device_is_out_of_memory_and_leaves_state_unchanged(standin: Path) -> None:
    result = run(
        """
ctypes.CDLL(sys.argv[1]).standin_set_total_bytes(ctypes.c_long(12 << 20))
geometry = c.Geometry(rows=2000, row_bytes=[8192] * 2, granularity_bytes=2 << 20, page_bytes=2 << 20)
pool = c.KvPool(c.Backend.cuda(0), geometry)
before = repr(pool.stats())
try:
    pool.grow(1000)
except MemoryError as error:
    print(error)
assert repr(pool.stats()) == before
pool.check_invariants()
assert pool.grow(700)
""",
        str(standin),
    )
    assert result.returncode == 0, result.stderr
    assert "CUDA_ERROR_OUT_OF_MEMORY (2)" in result.stdout
    assert "this pool holds 4194304" in result.stdout


def test_objects_alive_at_exit_end_quietly(standin: Path) -> None:
    result = run(
        """
geometry = c.Geometry(rows=2000, row_bytes=[8192], granularity_bytes=2 << 20, page_bytes=2 << 20)
class Holder: pass
holder = Holder()
holder.pool = c.KvPool(c.Backend.cuda(0), geometry)
holder.cycle = holder
""",
        str(standin),
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_a_missing_driver_is_a_reason_and_an_error_with_it() -> None:
    result = run(
        """
reason = c.cuda_unavailable_reason()
assert "/nowhere/libcuda.so" in reason
try:
    c.Backend.cuda(0)
except c.Unavailable as error:
    assert str(error) == reason
try:
    c.set_libcuda_path(None)
except c.Misuse as error:
    print(error)
c.set_libcuda_path(sys.argv[1])
""",
        "/nowhere/libcuda.so",
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "already looked for at /nowhere/libcuda.so" in result.stdout


def test_a_library_that_is_no_driver_is_refused() -> None:
    result = run("print(c.cuda_unavailable_reason())", "libm.so.6")
    assert result.returncode == 0, result.stderr
    assert "lacks cuInit" in result.stdout
