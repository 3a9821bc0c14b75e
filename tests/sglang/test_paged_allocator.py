"""The allocator of SGLang's pages: tokens of one request lie together, and whole pages come and go."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvcached._core import Backend, Geometry, KvPool, Ledger
from kvcached.errors import Misuse
from kvcached.sglang.allocator import ElasticPagedAllocator
from kvcached.sglang.block_pool import BlockPool
from kvcached.sglang.capacity import Capacity

PAGE = 16
PAGES = 60
ROWS = PAGES * PAGE


@pytest.fixture
def allocator(tmp_path: Path) -> Iterator[ElasticPagedAllocator]:
    tmp_path.chmod(0o700)
    client = Ledger(str(tmp_path / "host0.ledger"), 1 << 30).register(name="a")
    geometry = Geometry(rows=PAGES + 1, row_bytes=[1024], granularity_bytes=4096, page_bytes=4096)
    pool = KvPool(Backend.host(), geometry, client)
    yield ElasticPagedAllocator(
        ROWS,
        PAGE,
        dtype=torch.bfloat16,
        device="cpu",
        kvcache=None,
        capacity=Capacity(BlockPool(pool, PAGE), client, time.monotonic),
    )
    pool.close()


def extend(
    allocator: ElasticPagedAllocator, have: list[int], want: list[int], last: list[int]
) -> torch.Tensor | None:
    prefix, seq = torch.tensor(have), torch.tensor(want)
    return allocator.alloc_extend(prefix, prefix, seq, seq, torch.tensor(last), int((seq - prefix).sum()))


def test_what_is_asked_for_is_counted_in_rows_and_taken_in_pages(allocator: ElasticPagedAllocator) -> None:
    pool = allocator.capacity.pool
    assert allocator.available_size() == pool.rows_total == ROWS
    assert pool.grow(PAGE + 1)
    assert pool.rows_free_backed >= 2 * PAGE
    assert pool.rows_free_backed % PAGE == 0
    assert allocator.alloc(2 * PAGE) is not None
    assert allocator.available_size() == ROWS - 2 * PAGE == ROWS - pool.rows_used


def test_a_request_grows_within_its_page_and_then_takes_another(allocator: ElasticPagedAllocator) -> None:
    assert allocator.capacity.pool.grow(6 * PAGE)
    rows = extend(allocator, [0, 0], [20, 5], [-1, -1])
    assert rows is not None
    first, second = rows[:20].tolist(), rows[20:].tolist()
    for request in (first, second):
        assert request[0] % PAGE == 0
        assert min(request) >= PAGE, "page 0 is padding"
    assert first[1:16] == list(range(first[0] + 1, first[0] + 16))
    assert first[16] % PAGE == 0
    assert len({row // PAGE for row in first + second}) == 3
    assert allocator.available_size() == ROWS - 3 * PAGE

    more = extend(allocator, [20], [30], [first[-1]])
    assert more is not None
    assert more.tolist() == list(range(first[-1] + 1, first[-1] + 11)), "the page had room"
    lens = torch.tensor([33, 6])
    step = allocator.alloc_decode(lens, lens, torch.tensor([first[-1] + 12, second[-1]]))
    assert step is not None
    assert step[0] % PAGE == 0
    assert int(step[0]) // PAGE not in {row // PAGE for row in first + second}
    assert step[1] == second[-1] + 1
    assert allocator.available_size() == ROWS - 4 * PAGE


def test_too_few_backed_pages_are_none_and_take_nothing(allocator: ElasticPagedAllocator) -> None:
    backed = allocator.capacity.pool.rows_free_backed
    assert extend(allocator, [0], [backed + 1], [-1]) is None
    assert allocator.alloc(backed + PAGE) is None
    lens = torch.full((backed // PAGE + 1,), PAGE + 1)
    assert allocator.alloc_decode(lens, lens, torch.zeros_like(lens)) is None
    assert allocator.available_size() == ROWS
    allocator.capacity.pool.check_invariants()


def test_any_row_of_a_page_gives_it_back_once(allocator: ElasticPagedAllocator) -> None:
    assert allocator.capacity.pool.grow(5 * PAGE)
    rows = extend(allocator, [0], [5 * PAGE], [-1])
    assert rows is not None
    allocator.free(rows[:20])
    assert allocator.available_size() == ROWS - 3 * PAGE
    allocator.free_segment(rows[2 * PAGE : 3 * PAGE], start_pos=2 * PAGE)
    allocator.free_group_begin()
    allocator.free(rows[3 * PAGE : 4 * PAGE])
    allocator.free_segment(rows[4 * PAGE :], start_pos=4 * PAGE)
    assert allocator.available_size() == ROWS - 2 * PAGE
    allocator.free_group_end()
    assert allocator.available_size() == ROWS
    with pytest.raises(Misuse):
        allocator.free(rows[:1])
    assert allocator.available_size() == ROWS


def test_clearing_takes_all_back_and_leaves_the_padding(allocator: ElasticPagedAllocator) -> None:
    pool = allocator.capacity.pool
    with_padding_rows = pool.rows_free_backed
    assert pool.grow(10 * PAGE)
    assert extend(allocator, [0], [10 * PAGE], [-1]) is not None
    allocator.clear()
    assert allocator.available_size() == ROWS
    assert pool.rows_free_backed == with_padding_rows
