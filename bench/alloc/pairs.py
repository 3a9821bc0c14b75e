"""Allocators in the state in which pairs of alloc and free are measured, and blocks of such pairs.

A pool is half full: requests of 16 to 2,048 rows filled it, and every second one of them, drawn at random,
was freed. Pages hold 1,024 rows, as those of an 8B model do with pages of 2 MiB.
"""

import random
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from prometheus_client import CollectorRegistry, generate_latest
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from kvcached._core import Backend, Ledger
from kvcached.kv_pool import KVCachePool
from kvcached.metrics import PoolCollector
from kvcached.sglang.allocator import ElasticTokenAllocator
from kvcached.sglang.capacity import Capacity

ROWS_PER_PAGE = 1024
_ROW_SHAPE = (8, 4)  # 64 bytes of bfloat16: K and V of a million rows are 128 MiB
_LEAST_ROWS, _MOST_ROWS = 16, 2048
_SEED = 1


def elastic_allocator(stack: ExitStack, rows: int) -> ElasticTokenAllocator:
    """The plugin's own, all rows backed, paid for from a ledger, with a collector; `stack` takes it down."""
    folder = stack.enter_context(TemporaryDirectory(prefix="kvcached-bench-"))
    client = Ledger(str(Path(folder) / "host0.ledger"), 1 << 40).register(name="bench")
    cache = stack.enter_context(
        KVCachePool(
            Backend.host(),
            layers=1,
            rows=rows,
            row_shape=_ROW_SHAPE,
            dtype=torch.bfloat16,
            client=client,
            page_bytes=ROWS_PER_PAGE * 64,
        )
    )
    capacity = Capacity(cache.core, client, time.monotonic)
    allocator = ElasticTokenAllocator(
        rows, dtype=torch.bfloat16, device="cpu", kvcache=None, capacity=capacity
    )
    registry = CollectorRegistry()
    registry.register(PoolCollector({"bench": cache}))
    stack.callback(generate_latest, registry)  # scraped once, at the end
    if not cache.core.grow(rows):
        raise RuntimeError(f"the bench could not back {rows} rows")
    return allocator


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
