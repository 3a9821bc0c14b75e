"""The types that users see: mypy --strict of their scripts against the package, torch included."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

RIGHT = """
from typing import assert_type

import numpy as np
import numpy.typing as npt
import torch
from prometheus_client import CollectorRegistry

import kvcached
from kvcached._core import Backend, KvPool, Ledger, LedgerClient, PoolStats, VirtualRange
from kvcached.metrics import LedgerCollector, PoolCollector


def main() -> None:
    client = Ledger("/tmp/host0.ledger", 1 << 30).register(name="a", limit_bytes=None)
    assert_type(client, LedgerClient)
    with kvcached.KVCachePool(Backend.host(), layers=2, rows=9, row_shape=(8, 64), client=client) as pool:
        assert_type(pool, kvcached.KVCachePool)
        assert_type(pool.alloc(10), torch.Tensor)
        assert_type(pool.try_alloc(1), torch.Tensor | None)
        assert_type(pool.k, tuple[torch.Tensor, ...])
        assert_type(pool.stats(), PoolStats)
        assert_type(pool.stats().rows_used, int)
        assert_type(pool.core, KvPool)
        assert_type(pool.core.alloc(3), npt.NDArray[np.int64] | None)
        pool.realign(kvcached.KVCacheSpec(layers=1, rows=9, row_shape=(4,), latent=True))
        registry = CollectorRegistry()
        registry.register(PoolCollector({"a": pool, "core": pool.core}))
        registry.register(LedgerCollector())
    cache = kvcached.alloc_kvcache(layers=2, rows=100, row_shape=(8, 64), dtype=torch.bfloat16, device="cpu")
    kvcached.free_kv(cache, kvcached.alloc_kv(cache, 3))
    kvcached.free_kvcache(cache)
    virtual = kvcached.alloc_virtual_tensor((3, 5), torch.float32)
    assert_type(virtual.memory, VirtualRange)
    assert_type(virtual.tensor, torch.Tensor | None)
    kvcached.map(virtual, 0, virtual.memory.nbytes)
    kvcached.unmap(virtual, 0, virtual.memory.nbytes)
    kvcached.free_virtual_tensor(virtual)
    assert_type(kvcached.cuda_unavailable_reason(), str | None)
    assert_type(kvcached.__version__, str)
"""

# One mistake a line.
WRONG = """
import kvcached
from kvcached._core import Backend, PoolStats
def frozen(stats: PoolStats) -> None: stats.rows_used = 3
kvcached.KVCachePool(Backend.host(), layers="2", rows=10, row_shape=(1,))
kvcached.KVCachePool(Backend.host(), layers=2, rows=10, row_shape=(1,), layout="diagonal")
kvcached.KVCachePool(Backend.host(), layers=2, rows=10, row_shape=(1,), page_policy="worst_fit")
kvcached.alloc_kv(3, 3)
"""


def errors_of(script: str, folder: Path) -> list[int]:
    """Line numbers at which mypy --strict objects; it may object to nothing but the script."""
    path = folder / "user.py"
    path.write_text(script)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"]
    result = subprocess.run(
        [*command, f"--cache-dir={ROOT / '.mypy_cache' / 'users'}", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT)},
    )
    assert result.stderr == ""
    found = [line.split(":") for line in result.stdout.splitlines()]
    assert {parts[0] for parts in found} <= {"user.py"}, result.stdout
    return [int(parts[1]) for parts in found if parts[2].strip() == "error"]


@pytest.mark.timeout(600)
def test_a_users_script_is_checked_to_the_last_type(tmp_path: Path) -> None:
    assert resources.files("kvcached").joinpath("py.typed").is_file()
    assert errors_of(RIGHT, tmp_path) == []
    assert errors_of(WRONG, tmp_path) == [4, 5, 6, 7, 8]
