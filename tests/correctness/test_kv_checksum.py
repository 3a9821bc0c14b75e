"""Rows read back equal the rows written after pages went away, served another process, and came back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcached.stats import LedgerStats, read_ledger
from tests.correctness.pool_process import PoolProcess

ROWS = 4096
PAGES_BUDGETED = 12


class Pair:
    """Two processes on one ledger that holds `PAGES_BUDGETED` pages, their two padding pages included."""

    def __init__(
        self, first: PoolProcess, second: PoolProcess, ledger: Path, geometry: dict[str, int]
    ) -> None:
        self.first, self.second, self.geometry, self._ledger = first, second, geometry, str(ledger)
        self.budget_bytes = PAGES_BUDGETED * geometry["page_set_bytes"]
        opened: dict[str, Any] = {"ledger": self._ledger, "budget_bytes": self.budget_bytes, "rows": ROWS}
        self.first.call("open", name="first", **opened)
        self.second.call("open", name="second", **opened)

    def ledger(self) -> LedgerStats:
        return read_ledger(self._ledger)

    def rows_in_pages(self, pages: int) -> int:
        return pages * self.geometry["rows_per_page"]


@pytest.fixture(scope="module")
def geometry(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """A page's size is known only once a cache is there: one on a large budget of its own tells it."""
    ledger = tmp_path_factory.mktemp("probe") / "host0.ledger"
    with PoolProcess() as probe:
        opened: dict[str, Any] = {"ledger": str(ledger), "budget_bytes": 1 << 30, "rows": ROWS}
        sizes: dict[str, int] = probe.call("open", name="probe", **opened)
        return sizes


@pytest.fixture
def pair(tmp_path: Path, geometry: dict[str, int]) -> Iterator[Pair]:
    with PoolProcess() as first, PoolProcess() as second:
        yield Pair(first, second, tmp_path / "host0.ledger", geometry)


def test_rows_keep_their_content_while_pages_come_and_go(pair: Pair) -> None:
    kept = pair.first.call("alloc", rows=pair.rows_in_pages(3))
    passing = pair.first.call("alloc", rows=pair.rows_in_pages(7))
    assert pair.first.call("nonzero_rows", rows=kept + passing) == 0
    pair.first.call("write", rows=kept, seed=1)
    pair.first.call("write", rows=passing, seed=2)
    assert pair.second.call("alloc", rows=pair.rows_in_pages(4)) is None

    pair.first.call("free", rows=passing)
    theirs = pair.second.call("alloc", rows=pair.rows_in_pages(5))
    assert pair.second.call("nonzero_rows", rows=theirs) == 0
    pair.second.call("write", rows=theirs, seed=3)
    assert pair.first.call("wrong_rows", rows=kept, seed=1) == 0

    pair.second.call("free", rows=theirs)
    again = pair.first.call("alloc", rows=pair.rows_in_pages(6))
    assert pair.first.call("nonzero_rows", rows=again) == 0
    pair.first.call("write", rows=again, seed=4)
    assert pair.first.call("wrong_rows", rows=kept, seed=1) == 0
    assert pair.first.call("wrong_rows", rows=again, seed=4) == 0


def test_pages_that_moved_many_times_hold_only_their_owners_data(pair: Pair) -> None:
    moved_rows = pair.rows_in_pages(8)
    mine = pair.first.call("alloc", rows=pair.rows_in_pages(1))
    yours = pair.second.call("alloc", rows=pair.rows_in_pages(1))
    pair.first.call("write", rows=mine, seed=50)
    pair.second.call("write", rows=yours, seed=51)
    for turn in range(10):
        owner = pair.first if turn % 2 else pair.second
        rows = owner.call("alloc", rows=moved_rows)
        assert owner.call("nonzero_rows", rows=rows) == 0
        owner.call("write", rows=rows, seed=turn)
        assert owner.call("wrong_rows", rows=rows, seed=turn) == 0
        assert pair.ledger().used_bytes <= pair.budget_bytes
        owner.call("free", rows=rows)
    assert pair.first.call("wrong_rows", rows=mine, seed=50) == 0
    assert pair.second.call("wrong_rows", rows=yours, seed=51) == 0


def test_freed_pages_are_gone_by_the_kernels_account(pair: Pair) -> None:
    rows = pair.first.call("alloc", rows=pair.rows_in_pages(9))
    pair.first.call("write", rows=rows, seed=1)
    full, _other = pair.ledger().clients
    assert full.mapped_bytes == full.used_bytes >= 9 * pair.geometry["page_set_bytes"]
    pair.first.call("free", rows=rows)
    empty, _other = pair.ledger().clients
    assert empty.mapped_bytes == empty.used_bytes == pair.geometry["page_set_bytes"]


def test_a_killed_holder_leaves_its_memory_to_the_other(pair: Pair) -> None:
    assert pair.first.call("alloc", rows=pair.rows_in_pages(9)) is not None
    assert pair.second.call("alloc", rows=pair.rows_in_pages(9)) is None
    pair.first.kill()
    rows = pair.second.call("alloc", rows=pair.rows_in_pages(9))
    assert pair.second.call("nonzero_rows", rows=rows) == 0


def test_the_check_sees_a_wrong_row(pair: Pair) -> None:
    rows = pair.first.call("alloc", rows=8)
    pair.first.call("write", rows=rows, seed=1)
    assert pair.first.call("wrong_rows", rows=rows, seed=2) == 8 * 6
    pair.first.call("write", rows=rows[:1], seed=2)
    assert pair.first.call("wrong_rows", rows=rows, seed=1) == 6
