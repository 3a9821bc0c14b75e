"""The capacity protocol between two engines of one budget, with real pools and a real ledger."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from kvcached import _core
from kvcached.sglang.block_pool import BlockPool
from kvcached.sglang.capacity import RETRY_S, Capacity

ROW_BYTES = 256
GEOMETRY = _core.Geometry(
    rows=1 << 14, row_bytes=[ROW_BYTES] * 4, granularity_bytes=4096, page_bytes=4096, reserved_rows=1
)
PAGE_ROWS = GEOMETRY.rows_per_page
PAGE_BYTES = GEOMETRY.page_set_bytes
BUDGET_PAGES = 10


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Engine:
    """One engine: a pool, the rows its requests use, and a prefix cache that holds real rows of the pool."""

    ledger: _core.Ledger
    name: str
    floor_pages: int
    priority: int = 0
    clock: Clock = field(default_factory=Clock)
    cached: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = self.ledger.register(
            name=self.name, floor_bytes=self.floor_pages * PAGE_BYTES, priority=self.priority
        )
        self.pool = _core.KvPool(_core.Backend.host(strict=True), GEOMETRY, self.client)
        self.capacity = Capacity(BlockPool(self.pool), self.client, self.clock)

    def evictable_rows(self) -> int:
        return sum(len(rows) for rows in self.cached)

    def evict(self, rows: int) -> None:
        while self.cached and rows > 0:
            oldest = self.cached.pop(0)
            rows -= len(oldest)
            self.pool.free(oldest)

    def use(self, rows: int) -> np.ndarray:
        assert self.capacity.free_up(rows, self)
        ids = self.pool.alloc(rows)
        assert ids is not None
        return ids

    def admit(self, rows: int) -> bool:
        """One admission pass with one candidate."""
        self.capacity.begin_pass()
        admitted = self.capacity.secure(rows, self)
        self.capacity.end_pass()
        return admitted

    def cache(self, pages: int) -> None:
        self.cached += [self.use(PAGE_ROWS) for _ in range(pages)]

    def info(self) -> _core.ClientInfo:
        return next(c for c in self.ledger.snapshot().clients if c.name == self.name)

    def want_bytes(self) -> int:
        return self.info().want_bytes

    def set_limit(self, pages: int | None) -> None:
        """As another process does."""
        info, limit = self.info(), None if pages is None else pages * PAGE_BYTES
        self.ledger.set_limit(slot=info.slot, pid=info.pid, limit_bytes=limit)


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[tuple[Engine, Engine]]:
    folder = tmp_path / "ledger"
    folder.mkdir(mode=0o700)
    path = str(folder / "host.ledger")
    first = Engine(_core.Ledger(path, BUDGET_PAGES * PAGE_BYTES), "a", floor_pages=2)
    second = Engine(_core.Ledger(path), "b", floor_pages=2)
    yield first, second
    for engine in (first, second):
        engine.pool.check_invariants()
        engine.pool.close()
        engine.client.close()


def test_secure_grows_and_the_allocation_after_it_cannot_fail(engines: tuple[Engine, Engine]) -> None:
    engine, _ = engines
    rows = 3 * PAGE_ROWS
    assert engine.pool.alloc(rows) is None
    assert engine.capacity.secure(rows, engine)
    assert engine.pool.alloc(rows) is not None


def test_attainable_leaves_the_floors_of_others(engines: tuple[Engine, Engine]) -> None:
    engine, _ = engines
    assert engine.capacity.attainable_rows() == (BUDGET_PAGES - 2) * PAGE_ROWS - 1


def test_own_cache_is_evicted_only_where_the_ledger_refuses(engines: tuple[Engine, Engine]) -> None:
    engine, _ = engines
    engine.cache(2)
    engine.use(PAGE_ROWS)
    assert engine.evictable_rows() == 2 * PAGE_ROWS
    engine.use(5 * PAGE_ROWS)
    assert engine.evictable_rows() < 2 * PAGE_ROWS


def test_refusal_is_published_and_answered_by_the_other_engine(engines: tuple[Engine, Engine]) -> None:
    holder, waiter = engines
    holder.cache(7)
    rows = 4 * PAGE_ROWS
    assert not waiter.admit(rows)
    assert waiter.capacity.refused
    assert waiter.want_bytes() > 0
    assert not waiter.capacity.may_retry()

    holder.capacity.step_boundary(holder, idle=True)

    assert waiter.capacity.may_retry()
    assert waiter.admit(rows)
    assert waiter.want_bytes() == 0


def test_giving_back_stops_at_the_floor(engines: tuple[Engine, Engine]) -> None:
    holder, waiter = engines
    holder.cache(7)
    assert not waiter.admit(100 * PAGE_ROWS)
    holder.capacity.step_boundary(holder, idle=True)
    assert holder.client.used_bytes == 2 * PAGE_BYTES


def test_running_requests_are_not_given_back(engines: tuple[Engine, Engine]) -> None:
    holder, waiter = engines
    holder.use(6 * PAGE_ROWS)
    before_bytes = holder.client.used_bytes
    assert not waiter.admit(8 * PAGE_ROWS)
    holder.capacity.step_boundary(holder, idle=False)
    assert holder.client.used_bytes >= before_bytes - PAGE_BYTES


def test_refusal_is_retried_after_a_bounded_time(engines: tuple[Engine, Engine]) -> None:
    engine, _ = engines
    assert not engine.admit(100 * PAGE_ROWS)
    assert not engine.capacity.may_retry()
    engine.clock.now_s += RETRY_S
    assert engine.capacity.may_retry()


def test_a_hopeless_request_grows_and_evicts_nothing(engines: tuple[Engine, Engine]) -> None:
    engine, _ = engines
    engine.cache(2)
    before = engine.client.used_bytes, engine.evictable_rows()
    assert not engine.capacity.secure(100 * PAGE_ROWS, engine)
    assert not engine.capacity.free_up(100 * PAGE_ROWS, engine)
    assert (engine.client.used_bytes, engine.evictable_rows()) == before


def test_an_idle_engine_keeps_only_the_padding_page(engines: tuple[Engine, Engine]) -> None:
    engine, _ = engines
    ids = engine.use(5 * PAGE_ROWS)
    engine.pool.free(ids)
    engine.capacity.step_boundary(engine, idle=True)
    assert engine.pool.mapped_bytes == PAGE_BYTES
    assert engine.client.used_bytes == PAGE_BYTES


def test_a_busy_engines_cache_outlives_an_idle_ones(engines: tuple[Engine, Engine]) -> None:
    idle, busy = engines
    idle.cache(6)
    busy.cache(2)
    busy.use(PAGE_ROWS)
    assert busy.evictable_rows() < 2 * PAGE_ROWS, "nothing else was at hand at that instant"
    assert busy.want_bytes() > 0, "but others are asked for it"

    idle.capacity.step_boundary(idle, idle=True)

    kept_rows = busy.evictable_rows()
    busy.use(PAGE_ROWS)
    assert busy.evictable_rows() == kept_rows
    assert busy.want_bytes() == 0


def test_a_want_that_free_budget_covers_is_not_served_twice(engines: tuple[Engine, Engine]) -> None:
    holder, waiter = engines
    holder.cache(7)
    assert not waiter.admit(4 * PAGE_ROWS)
    holder.capacity.step_boundary(holder, idle=True)
    given = holder.client.used_bytes
    holder.capacity.step_boundary(holder, idle=True)
    assert holder.client.used_bytes == given > 2 * PAGE_BYTES


def refuse_beyond_obtainable(engine: Engine, rows: int) -> None:
    """One admission pass that ends as SGLang's budget does: by what is obtainable, before anything grows."""
    engine.capacity.begin_pass()
    missing_rows = rows - engine.capacity.obtainable_rows(engine)
    assert missing_rows > 0
    engine.capacity.refuse(missing_rows)
    engine.capacity.end_pass()


@pytest.mark.parametrize("cached_pages", [5, 6, 7])
@pytest.mark.parametrize("needed_pages", [4, 5, 6])
def test_an_idle_cache_gives_all_that_a_refused_request_lacks(
    engines: tuple[Engine, Engine], cached_pages: int, needed_pages: int
) -> None:
    idle, waiter = engines
    idle.cache(cached_pages)
    rows = needed_pages * PAGE_ROWS
    if waiter.capacity.obtainable_rows(waiter) < rows:
        refuse_beyond_obtainable(waiter, rows)
        idle.capacity.step_boundary(idle, idle=True)
    assert waiter.admit(rows)
    waiter.pool.check_invariants()


def test_a_prompt_in_chunks_keeps_what_was_backed_for_it(engines: tuple[Engine, Engine]) -> None:
    engine, other = engines
    engine.cache(6)
    rows = 5 * PAGE_ROWS
    assert engine.capacity.secure_backed(rows, engine)
    engine.capacity.reserve(rows)
    assert not other.admit(9 * PAGE_ROWS)
    engine.capacity.step_boundary(engine, idle=False)
    assert engine.pool.rows_free_backed >= rows
    engine.capacity.reserve(0)
    engine.capacity.step_boundary(engine, idle=False)
    assert engine.pool.rows_free_backed < rows


def test_a_more_important_engine_gives_nothing_to_a_less_important_one(
    engines: tuple[Engine, Engine],
) -> None:
    holder, waiter = engines
    holder.client.set_priority(1)
    holder.cache(7)
    assert not waiter.admit(4 * PAGE_ROWS)
    holder.capacity.step_boundary(holder, idle=False)
    assert holder.evictable_rows() == 7 * PAGE_ROWS
    waiter.client.set_priority(2)
    holder.capacity.step_boundary(holder, idle=False)
    assert waiter.admit(4 * PAGE_ROWS)


def test_the_next_want_is_renewed_with_every_refused_pass(engines: tuple[Engine, Engine]) -> None:
    holder, waiter = engines
    holder.use(7 * PAGE_ROWS)
    assert not waiter.admit(5 * PAGE_ROWS)
    wanted_bytes = waiter.want_bytes()
    waiter.client.set_want(wanted_bytes, 0.02)
    deadline_s = time.monotonic() + 60.0
    while waiter.want_bytes() > 0:
        assert time.monotonic() < deadline_s, "a want that nobody renews lapses"
        time.sleep(0.005)
    assert not waiter.admit(5 * PAGE_ROWS)
    assert waiter.want_bytes() == wanted_bytes


def test_admission_leaves_what_a_more_important_engine_wants_and_running_requests_go_on(
    engines: tuple[Engine, Engine],
) -> None:
    first, second = engines
    first.client.set_priority(1)
    running = first.use(6 * PAGE_ROWS)
    assert not first.admit(4 * PAGE_ROWS)
    first.pool.free(running)
    first.capacity.trim(idle=True)
    # 9 of 10 pages are free beside padding; 4 are wanted by the first and its floor is 2.
    assert not second.admit(8 * PAGE_ROWS)
    assert second.capacity.refused
    assert second.capacity.free_up(7 * PAGE_ROWS, second), "running requests take what there is"


def test_a_lowered_limit_takes_cache_at_the_next_boundary_and_used_pages_as_requests_end(
    engines: tuple[Engine, Engine],
) -> None:
    engine, _ = engines
    engine.cache(3)
    running = engine.use(4 * PAGE_ROWS)
    held_bytes = engine.client.used_bytes
    engine.set_limit(3)
    assert not engine.pool.grow(PAGE_ROWS), "no new grant from here on"

    engine.capacity.step_boundary(engine, idle=False)
    assert engine.evictable_rows() == 0
    assert held_bytes > engine.client.used_bytes >= 4 * PAGE_BYTES

    engine.cached.append(running)  # the request ends: its rows are cache now
    engine.capacity.step_boundary(engine, idle=False)
    assert engine.client.used_bytes <= 3 * PAGE_BYTES


def test_peer_fault_08_a_restored_limit_regrows(engines: tuple[Engine, Engine]) -> None:
    engine, _ = engines
    engine.set_limit(3)
    assert not engine.admit(5 * PAGE_ROWS)
    resizes = engine.pool.stats().maps
    for _ in range(100):
        engine.capacity.step_boundary(engine, idle=True)
        engine.pool.free(engine.use(PAGE_ROWS // 2))
    assert engine.pool.stats().maps - resizes <= 100, "a limit that is kept costs no resizing"
    engine.set_limit(None)
    assert engine.admit(5 * PAGE_ROWS)


def test_an_offer_that_turns_out_empty_is_withdrawn(engines: tuple[Engine, Engine]) -> None:
    holder, waiter = engines
    rows = [holder.use(PAGE_ROWS) for _ in range(6)]
    for ids in rows:  # half of every page: as many free rows as three pages, and no empty page
        holder.pool.free(ids[::2].copy())
    assert not waiter.admit(5 * PAGE_ROWS)
    holder.capacity.step_boundary(holder, idle=False)
    assert holder.info().spare_bytes == 0
    assert holder.client.asked_bytes() == 0


def test_an_engine_whose_ledger_was_deleted_says_so_once(
    engines: tuple[Engine, Engine], caplog: pytest.LogCaptureFixture
) -> None:
    engine, _ = engines
    Path(engine.ledger.path).unlink()
    for _ in range(3):
        engine.capacity.step_boundary(engine, idle=True)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "deleted or replaced" in caplog.text
