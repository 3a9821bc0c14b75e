"""Allocators in the state in which pairs of alloc and free are measured, and blocks of such pairs.

A pool is half full: requests of 16 to 2,048 rows filled it, and every second one of them, drawn at random,
was freed. Pages hold 1,024 rows, as those of an 8B model do with pages of 2 MiB.
"""

import random
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from prometheus_client import CollectorRegistry, generate_latest
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from kvcached._core import Backend, Ledger, LedgerClient
from kvcached.errors import Misuse
from kvcached.kv_pool import KVCachePool
from kvcached.metrics import LedgerCollector, PoolCollector
from kvcached.sglang.allocator import ElasticTokenAllocator
from kvcached.sglang.block_pool import BlockPool
from kvcached.sglang.capacity import Capacity

ROWS_PER_PAGE = 1024
_PAGE_BYTES = 64 * ROWS_PER_PAGE
_ROW_SHAPE = (8, 4)  # 64 bytes of bfloat16: K and V of a million rows are 128 MiB
_WARM_SHARE = 16  # of the budget, as the plugin's default
_LEAST_ROWS, _MOST_ROWS = 16, 2048
_SEED = 1


@dataclass(frozen=True, slots=True)
class Elastic:
    """The plugin's allocator with all that surrounds it in an engine: ledger, warm reserve, metrics."""

    allocator: ElasticTokenAllocator
    client: LedgerClient
    registry: CollectorRegistry

    def block_us(self, rows: int, pairs: int) -> float:
        """`block_us`, with a scrape before and after. RuntimeError unless that saw each row go and return."""
        before = self._scrape()
        mean_us = block_us(self.allocator, rows, pairs)
        seen = {metric: value - before[metric] for metric, value in self._scrape().items()}
        expected = {"allocated_rows_total": rows * pairs, "freed_rows_total": rows * pairs, "used_rows": 0}
        if seen != expected:
            raise RuntimeError(f"{pairs} pairs of {rows} rows were counted as {seen}")
        return mean_us

    def verify(self) -> None:
        """RuntimeError unless rows are distinct and free, a second free is refused, and the ledger counts."""
        allocator, pool = self.allocator, self.allocator.capacity.pool
        first, second = allocator.alloc(300), allocator.alloc(300)
        if first is None or second is None or len({*first.tolist(), *second.tolist()}) != 600:
            raise RuntimeError(f"600 rows of {pool!r} are not 600 rows")
        allocator.free(first)
        for again in (first, torch.cat((second, second[:1]))):
            try:
                allocator.free(again)
            except Misuse:
                continue
            raise RuntimeError("a row was freed twice")
        allocator.free(second)
        if not self.client.used_bytes == pool.mapped_bytes > 0:
            raise RuntimeError(f"{self.client.used_bytes} bytes are paid for {pool!r}")
        pool.check_invariants()

    def _scrape(self) -> dict[str, float]:
        generate_latest(self.registry)
        shown = {}
        for metric in ("allocated_rows_total", "freed_rows_total", "used_rows"):
            value = self.registry.get_sample_value(f"kvcached_pool_{metric}", {"pool": "bench"})
            if value is None:
                raise RuntimeError(f"the scrape lacks {metric}")
            shown[metric] = value
        return shown


def make_elastic(stack: ExitStack, rows: int) -> Elastic:
    """As the plugin makes it, half full, all rows backed; `stack` takes it down."""
    folder = stack.enter_context(TemporaryDirectory(prefix="kvcached-bench-"))
    path = str(Path(folder) / "host0.ledger")
    budget_bytes = 2 * _PAGE_BYTES * (rows // ROWS_PER_PAGE + 1)
    client = Ledger(path, budget_bytes).register(name="bench")
    cache = stack.enter_context(
        KVCachePool(
            Backend.host(),
            layers=1,
            rows=rows,
            row_shape=_ROW_SHAPE,
            dtype=torch.bfloat16,
            client=client,
            page_bytes=_PAGE_BYTES,
            warm_bytes=budget_bytes // _WARM_SHARE,
        )
    )
    capacity = Capacity(BlockPool(cache.core), client, time.monotonic)
    allocator = ElasticTokenAllocator(
        rows, dtype=torch.bfloat16, device="cpu", kvcache=None, capacity=capacity
    )
    registry = CollectorRegistry()
    registry.register(PoolCollector({"bench": cache}))
    registry.register(LedgerCollector(path))
    if not cache.core.grow(rows):
        raise RuntimeError(f"the bench could not back {rows} rows")
    return Elastic(allocator, client, registry)


def stock_allocator(rows: int) -> TokenToKVPoolAllocator:
    """SGLang's own."""
    return TokenToKVPoolAllocator(rows, torch.bfloat16, "cpu", None, need_sort=False)


def fill_half(allocator: Any) -> None:
    """Bring an allocator into the state described above."""
    source = random.Random(_SEED)
    requests = []
    while (free_rows := allocator.available_size()) > 0:
        requests.append(allocator.alloc(min(free_rows, source.randint(_LEAST_ROWS, _MOST_ROWS))))
    leaving = source.sample(range(len(requests)), len(requests) // 2)
    allocator.free(torch.cat([requests[number] for number in leaving]))


def scatter_half(allocator: Any) -> None:
    """The worst case: every second row free, drawn at random from all."""
    source = random.Random(_SEED)
    rows = allocator.alloc(allocator.available_size()).tolist()
    allocator.free(torch.tensor(source.sample(rows, len(rows) // 2)))


def block_us(allocator: Any, rows: int, pairs: int) -> float:
    """Mean time of a pair of alloc and free of `rows` rows over a block of `pairs`."""
    started_ns = time.perf_counter_ns()
    for _ in range(pairs):
        allocator.free(allocator.alloc(rows))
    return (time.perf_counter_ns() - started_ns) / pairs / 1e3
