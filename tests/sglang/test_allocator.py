"""The allocator that SGLang calls: tensors in and out, refusals without effect."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvcached._core import Backend, Geometry, KvPool, Ledger
from kvcached.errors import Misuse
from kvcached.sglang.allocator import ElasticTokenAllocator
from kvcached.sglang.block_pool import BlockPool
from kvcached.sglang.capacity import Capacity

ROWS = 100


@pytest.fixture
def allocator(tmp_path: Path) -> Iterator[ElasticTokenAllocator]:
    tmp_path.chmod(0o700)
    client = Ledger(str(tmp_path / "host0.ledger"), 1 << 30).register(name="a")
    geometry = Geometry(rows=ROWS + 1, row_bytes=[256], granularity_bytes=4096, page_bytes=4096)
    pool = KvPool(Backend.host(), geometry, client)
    yield ElasticTokenAllocator(
        ROWS,
        dtype=torch.bfloat16,
        device="cpu",
        kvcache=None,
        capacity=Capacity(BlockPool(pool), client, time.monotonic),
    )
    pool.close()


def take(allocator: ElasticTokenAllocator, rows: int) -> torch.Tensor:
    allocator.capacity.pool.grow(rows)
    index = allocator.alloc(rows)
    assert index is not None
    return index


def test_rows_are_int64_tensors_of_their_own(allocator: ElasticTokenAllocator) -> None:
    first, second = take(allocator, 30), take(allocator, 20)
    assert first.dtype == second.dtype == torch.int64
    assert first.shape == (30,)
    assert len({*first.tolist(), *second.tolist()}) == 50
    assert allocator.available_size() == ROWS - 50
    first.zero_()  # SGLang may write into what it got
    assert len(set(second.tolist())) == 20


def test_too_few_backed_rows_are_none(allocator: ElasticTokenAllocator) -> None:
    assert allocator.alloc(allocator.capacity.pool.rows_free_backed + 1) is None
    assert allocator.available_size() == ROWS


def test_any_integer_tensor_is_taken_back(allocator: ElasticTokenAllocator) -> None:
    index = take(allocator, 40)
    allocator.free(index[:20:2])  # not contiguous
    allocator.free(index[1:20:2].to(torch.int32))
    allocator.free(index[20:].flip(0))
    allocator.free(index[:0])
    assert allocator.available_size() == ROWS
    allocator.capacity.pool.check_invariants()


def test_a_group_is_freed_at_its_end(allocator: ElasticTokenAllocator) -> None:
    index = take(allocator, 10)
    allocator.free_group_begin()
    allocator.free(index[:4])
    allocator.free(index[4:])
    assert allocator.available_size() == ROWS - 10
    allocator.free_group_end()
    assert allocator.available_size() == ROWS


def test_a_double_free_changes_nothing(allocator: ElasticTokenAllocator) -> None:
    index = take(allocator, 10)
    for wrong in (torch.cat((index, index[:1])), torch.tensor([0]), torch.tensor([ROWS + 1])):
        with pytest.raises(Misuse, match="free: row"):
            allocator.free(wrong)
        assert allocator.available_size() == ROWS - 10
    allocator.free(index)
