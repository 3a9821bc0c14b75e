from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

import pytest
import torch

from kvcached import proc
from kvcached._core import Backend, Ledger
from kvcached.errors import Misuse, OutOfMemory
from kvcached.kv_pool import KVCachePool

if TYPE_CHECKING:
    from conftest import StartChild

PAGE_BYTES = 64 << 10
LAYERS = 2
ROW_BYTES = 8 * 64 * 2
ROWS_PER_PAGE = PAGE_BYTES // ROW_BYTES
PAGE_SET_BYTES = 2 * LAYERS * PAGE_BYTES


def make_pool(rows: int = 10_000, **options: object) -> KVCachePool:
    return KVCachePool(
        Backend.host(),
        layers=LAYERS,
        rows=rows,
        row_shape=(8, 64),
        dtype=torch.bfloat16,
        **options,  # type: ignore[arg-type]
    )


def kernel_bytes(cache: KVCachePool) -> int:
    base = min(tensor.data_ptr() for tensor in (*cache.k, *cache.v))
    return proc.rss_bytes(os.getpid(), base, cache.geometry.reservation_bytes)


NO_ROWS = {
    "halves": torch.tensor([1.5]),
    "bfloat16": torch.tensor([1], dtype=torch.bfloat16),
    "requires_grad": torch.tensor([1.0], requires_grad=True),
    "meta": torch.empty(1, dtype=torch.int64, device="meta"),
    "sparse": torch.tensor([1]).to_sparse(),
    "booleans": torch.tensor([True]),
    "two dimensions": torch.tensor([[1]]),
    "ragged": [1, [2]],
    "set": {1},
}


@pytest.mark.parametrize("rows", NO_ROWS.values(), ids=NO_ROWS.keys())
def test_what_is_no_row_number_is_refused_and_changes_nothing(rows: object) -> None:
    with make_pool() as cache:
        taken = cache.alloc(3)
        with pytest.raises(Misuse, match="rows must be one dimension of integers"):
            cache.free(rows)
        assert cache.stats().rows_used == 3
        cache.check_invariants()
        cache.free([])
        cache.free(torch.tensor([]))
        cache.free(torch.empty(0, dtype=torch.bfloat16))
        cache.free(taken)


@pytest.mark.parametrize("count", [-1, 2.5, "3", None, 10**30])
def test_what_is_no_count_is_refused_and_changes_nothing(count: object) -> None:
    with make_pool() as cache:
        with pytest.raises(Misuse, match="rows is"):
            cache.alloc(count)  # type: ignore[arg-type]
        assert cache.stats().rows_used == 0
        assert cache.alloc(torch.tensor(3)).tolist() == [1, 2, 3]  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["warm_rows", "warm_bytes"])
def test_a_pool_that_keeps_less_than_nothing_is_refused(what: str) -> None:
    with pytest.raises(Misuse, match=f"{what} is -1"):
        make_pool(**{what: -1})


def test_tensors_have_the_shape_asked_for_and_lie_in_one_reservation() -> None:
    with make_pool() as cache:
        stripes = [*cache.k, *cache.v]
        assert len(cache.k) == len(cache.v) == LAYERS
        assert {tuple(tensor.shape) for tensor in stripes} == {(cache.geometry.rows, 8, 64)}
        assert {tensor.dtype for tensor in stripes} == {torch.bfloat16}
        assert all(tensor.is_contiguous() for tensor in stripes)
        addresses = [tensor.data_ptr() for tensor in stripes]
        assert addresses == sorted(set(addresses))
        assert addresses[-1] - addresses[0] < cache.geometry.reservation_bytes


def test_k_and_v_may_differ_in_shape() -> None:
    with KVCachePool(
        Backend.host(), layers=3, rows=100, row_shape=(2, 24), v_row_shape=(2, 16), dtype="float32"
    ) as cache:
        assert {tuple(tensor.shape[1:]) for tensor in cache.k} == {(2, 24)}
        assert {tuple(tensor.shape[1:]) for tensor in cache.v} == {(2, 16)}
        rows = cache.alloc(100)
        for tensor in (*cache.k, *cache.v):
            tensor[rows] = torch.randn(100, *tensor.shape[1:])
        cache.check_invariants()


def test_memory_follows_the_rows_as_the_kernel_sees_it() -> None:
    with make_pool() as cache:
        assert kernel_bytes(cache) == cache.mapped_bytes == PAGE_SET_BYTES  # the padding page
        rows = cache.alloc(5 * ROWS_PER_PAGE)
        assert kernel_bytes(cache) == cache.mapped_bytes == 6 * PAGE_SET_BYTES
        cache.free(rows)
        assert kernel_bytes(cache) == cache.mapped_bytes <= 2 * PAGE_SET_BYTES  # one page stays warm
        assert cache.trim() >= 0
        assert kernel_bytes(cache) == cache.mapped_bytes == PAGE_SET_BYTES


def test_rows_read_back_as_written_after_pages_came_and_went() -> None:
    generator = torch.Generator().manual_seed(1)
    with make_pool() as cache:
        kept = cache.alloc(50)
        content = torch.randn(50, 8, 64, generator=generator).to(torch.bfloat16)
        for tensor in (*cache.k, *cache.v):
            tensor[kept] = content
        for count in (1000, 3000, 10):
            passing = cache.alloc(count)
            assert not set(passing.tolist()) & set(kept.tolist())
            for tensor in (*cache.k, *cache.v):
                tensor[passing] = 7
            cache.free(passing)
            cache.trim()
        for tensor in (*cache.k, *cache.v):
            assert torch.equal(tensor[kept], content)


def test_the_padding_row_is_writable_and_never_handed_out() -> None:
    with make_pool(rows=200, reserved_rows=3) as cache:
        for tensor in (*cache.k, *cache.v):
            tensor[:3] = 1
        rows = cache.alloc(200)
        assert int(rows.min()) >= 3
        with pytest.raises(Misuse):
            cache.free([0])


def test_all_rows_can_be_had_and_no_more() -> None:
    with make_pool(rows=500) as cache:
        total = cache.stats().rows_total
        assert total >= 500
        rows = cache.alloc(total)
        assert rows.dtype == torch.int64
        assert len(set(rows.tolist())) == total
        assert cache.try_alloc(1) is None
        with pytest.raises(OutOfMemory, match=f"{total} of {total} rows are in use"):
            cache.alloc(1)
        cache.free(rows[:1])
        assert cache.alloc(1).tolist() == rows[:1].tolist()


def test_rows_may_be_freed_as_tensor_array_or_list() -> None:
    with make_pool() as cache:
        rows = cache.alloc(9)
        cache.free(rows[:3].to(torch.int32))
        cache.free(rows[3:6].numpy())
        cache.free(rows[6:].tolist())
        cache.free([])
        assert cache.stats().rows_used == 0


@pytest.mark.parametrize("wrong", [[[1, 2]], [1.5], ["1"], [10**9], [-1]])
def test_wrong_rows_are_misuse_and_change_nothing(wrong: list[object]) -> None:
    with make_pool() as cache:
        rows = cache.alloc(4)
        with pytest.raises(Misuse):
            cache.free(wrong)
        with pytest.raises(Misuse):
            cache.free([*rows.tolist(), rows[0].item()])
        assert cache.stats().rows_used == 4
        cache.free(rows)
        with pytest.raises(Misuse):
            cache.free(rows)
        cache.check_invariants()


@pytest.mark.parametrize(
    "wrong", [{"layers": 0}, {"rows": 0}, {"row_shape": (0, 4)}, {"dtype": "bfloat17"}, {"page_bytes": -4096}]
)
def test_impossible_caches_are_misuse(wrong: dict[str, object]) -> None:
    arguments: dict[str, object] = {"layers": 1, "rows": 10, "row_shape": (1, 64)} | wrong
    with pytest.raises(Misuse):
        KVCachePool(Backend.host(), **arguments)  # type: ignore[arg-type]


def test_a_negative_count_is_misuse() -> None:
    with make_pool() as cache, pytest.raises(Misuse, match="-1"):
        cache.alloc(-1)


def test_closing_returns_memory_at_once_and_credit_with_the_last_tensor(ledger_path: str) -> None:
    ledger = Ledger(ledger_path, 100 << 20)
    cache = make_pool(client=ledger.register(name="a"))
    cache.alloc(1000)
    view = cache.k[1][3:5]
    base, nbytes = cache.v[0].data_ptr(), cache.geometry.reservation_bytes
    cache.close()
    cache.close()
    assert cache.mapped_bytes == 0
    assert ledger.snapshot().used_bytes == PAGE_SET_BYTES  # the padding page, under the view that still lives
    assert view.data_ptr() != base
    del view
    gc.collect()
    assert ledger.snapshot().clients == []
    assert ledger.snapshot().used_bytes == 0
    with pytest.raises(Misuse, match="closed"):
        cache.alloc(1)
    assert nbytes > 0


def test_a_budget_refusal_changes_nothing_and_passes_with_its_cause(ledger_path: str) -> None:
    ledger = Ledger(ledger_path, 4 * PAGE_SET_BYTES)
    other = ledger.register(name="other")
    assert other.try_claim(2 * PAGE_SET_BYTES)
    with make_pool(client=ledger.register(name="mine")) as cache:
        rows = cache.alloc(ROWS_PER_PAGE)
        before = (
            cache.stats().rows_used,
            cache.mapped_bytes,
            ledger.snapshot().used_bytes,
            kernel_bytes(cache),
        )
        assert cache.try_alloc(2 * ROWS_PER_PAGE) is None
        with pytest.raises(OutOfMemory, match="raise the limit or the budget") as refusal:
            cache.alloc(2 * ROWS_PER_PAGE)
        need_bytes, held_bytes = 2 * PAGE_SET_BYTES, 2 * PAGE_SET_BYTES
        for part in (
            f"{ROWS_PER_PAGE} of ",
            f"needs {need_bytes} bytes, this pool holds {held_bytes}",
            "'mine'",
            "'other'",
        ):
            assert part in str(refusal.value)
        assert before == (
            cache.stats().rows_used,
            cache.mapped_bytes,
            ledger.snapshot().used_bytes,
            kernel_bytes(cache),
        )
        other.release(2 * PAGE_SET_BYTES)
        more = cache.alloc(ROWS_PER_PAGE)
        assert not set(more.tolist()) & set(rows.tolist())


def test_a_client_publishes_its_range_and_rows(ledger_path: str) -> None:
    ledger = Ledger(ledger_path, 100 << 20)
    with make_pool(client=ledger.register(name="a")) as cache:
        cache.alloc(100)
        (client,) = ledger.snapshot().clients
        assert client.rows_used == 100
        assert client.rows_backed == cache.stats().rows_backed
        assert client.range_bytes == cache.geometry.reservation_bytes
        assert proc.rss_bytes(client.pid, client.range_base, client.range_bytes) == cache.mapped_bytes


def test_tensors_that_outlive_the_interpreter_do_no_harm(start_child: StartChild) -> None:
    child = start_child(
        """
        import kvcached, torch
        cache = kvcached.alloc_kvcache(layers=1, rows=100, row_shape=(4, 8), dtype=torch.float32)
        torch.kept_to_the_very_end = cache.k[0][:2]
        print("made")
        """
    )
    assert child.line() == "made"
    assert child.end() == 0, child.errors()


STRICT_TOUCH = """
    import sys
    import torch
    from kvcached._core import Backend
    from kvcached.kv_pool import KVCachePool
    backend = Backend.host(strict=True)
    cache = KVCachePool(backend, layers=1, rows=10_000, row_shape=(8, 64), dtype=torch.bfloat16)
    rows = cache.alloc(10)
    print(float(cache.k[0][rows].float().sum()))
    backed = cache.stats().rows_backed
    row = backed + 1 if sys.argv[1] == "unbacked" else backed
    print(float(cache.k[0][row].float().sum()))
"""


def test_in_strict_mode_an_unbacked_row_faults(start_child: StartChild) -> None:
    child = start_child(STRICT_TOUCH, "unbacked")
    assert child.line() == "0.0"
    assert child.line() == ""
    assert child.end() == -11
    well_behaved = start_child(STRICT_TOUCH, "backed")
    assert [well_behaved.line(), well_behaved.line()] == ["0.0", "0.0"]
    assert well_behaved.end() == 0


def test_leaving_the_context_by_an_error_gives_all_back(ledger_path: str) -> None:
    ledger = Ledger(ledger_path, 100 << 20)
    with pytest.raises(ZeroDivisionError), make_pool(client=ledger.register(name="a")) as cache:
        cache.alloc(1000)
        1 / 0  # noqa: B018 - any error
    assert cache.mapped_bytes == 0
    with pytest.raises(Misuse, match="closed"):
        cache.stats()
    del cache
    gc.collect()
    assert ledger.snapshot().used_bytes == 0


def test_stats_are_of_their_instant_and_cannot_be_written() -> None:
    with make_pool() as cache:
        before = cache.stats()
        cache.alloc(7)
        assert (before.rows_used, cache.stats().rows_used) == (0, 7)
        for field in ("rows_used", "mapped_bytes", "anything"):
            with pytest.raises(AttributeError):
                setattr(before, field, 1)
