"""Random lives of the compiled pool under a budget, against a model that is a list of rows."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcached._core import Backend, Geometry, KvPool, Ledger
from kvcached.config import PAGE_POLICIES, PagePolicy
from kvcached.errors import Misuse, OutOfMemory


class PoolMachine(RuleBasedStateMachine):
    """Random alloc, free, grow and trim under a budget, against a model that is a set of rows."""

    @initialize(
        rows=st.integers(1, 700),
        reserved=st.integers(1, 5),
        row_bytes=st.sampled_from([[1024], [1024, 1024], [768, 256], [96, 4096, 32]]),
        row_multiple=st.sampled_from([1, 1, 16]),
        spare_pages=st.integers(0, 40),
        policy=st.sampled_from(PAGE_POLICIES),
    )
    def build(
        self,
        rows: int,
        reserved: int,
        row_bytes: list[int],
        row_multiple: int,
        spare_pages: int,
        policy: PagePolicy,
    ) -> None:
        backend = Backend.host()
        self.adopt(
            Geometry(
                rows=rows + reserved,
                row_bytes=row_bytes,
                granularity_bytes=backend.capabilities.granularity_bytes,
                page_bytes=4096,
                row_multiple=row_multiple,
                reserved_rows=reserved,
            )
        )
        # One file per example: a failing one must not spoil the next.
        path = f"{tempfile.mkdtemp(dir=os.environ['XDG_RUNTIME_DIR'])}/host0.ledger"
        self.ledger = Ledger(path, (self.padding_pages + spare_pages) * self.page_set_bytes)
        self.client = self.ledger.register(name="machine")
        self.pool = KvPool(backend, self.geometry, self.client, page_policy=policy)
        self.reservation_bytes = self.geometry.reservation_bytes
        self.held: list[int] = []

    def adopt(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.page_set_bytes = geometry.page_set_bytes
        self.padding_pages = geometry.pinned_bytes // geometry.page_set_bytes

    @rule(count=st.integers(0, 300))
    def alloc(self, count: int) -> None:
        free_backed = self.pool.rows_free_backed
        mapped_bytes = self.pool.mapped_bytes
        ids = self.pool.alloc(count)
        assert (ids is not None) == (count <= free_backed)
        assert self.pool.mapped_bytes == mapped_bytes  # picking rows never maps
        if ids is not None:
            assert ids.dtype == np.int64
            assert len(ids) == count == len(set(ids.tolist()))
            assert not set(ids.tolist()) & set(self.held)
            self.held += ids.tolist()

    @rule(count=st.integers(0, 300))
    def grow(self, count: int) -> None:
        obtainable = self.pool.rows_obtainable
        before = (self.pool.mapped_bytes, self.pool.rows_free_backed)
        if self.pool.grow(count):
            assert self.pool.rows_free_backed >= count
            assert count <= obtainable
        else:
            assert (self.pool.mapped_bytes, self.pool.rows_free_backed) == before
            assert count > obtainable

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free_some(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.held), unique=True))
        self.pool.free(np.array(chosen, dtype=np.int64))
        self.held = [row for row in self.held if row not in set(chosen)]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free_wrongly(self, data: st.DataObject) -> None:
        good = data.draw(st.sampled_from(self.held))
        bad = data.draw(st.sampled_from([0, -1, 1 << 40, good]))  # reserved, foreign, out of range, twice
        with pytest.raises(Misuse):
            self.pool.free(np.array([good, bad], dtype=np.int64))

    @rule(keep=st.integers(0, 300))
    def trim(self, keep: int) -> None:
        before = (self.pool.mapped_bytes, self.pool.rows_free_backed)
        released_bytes = self.pool.trim(keep)
        assert self.pool.mapped_bytes == before[0] - released_bytes
        assert self.pool.rows_free_backed >= min(keep, before[1])

    @rule(rows=st.integers(2, 700), row_bytes=st.sampled_from([[512], [2048, 1024], [96, 32]]))
    def realign(self, rows: int, row_bytes: list[int]) -> None:
        geometry = Geometry(rows=rows, row_bytes=row_bytes, granularity_bytes=4096, page_bytes=4096)
        fits = geometry.reservation_bytes <= self.reservation_bytes
        affordable = geometry.page_set_bytes <= self.ledger.budget_bytes
        if not self.held and fits and affordable:
            self.pool.realign(geometry)
            self.adopt(geometry)
            assert self.pool.mapped_bytes == self.page_set_bytes
        else:
            with pytest.raises(Misuse if self.held or not fits else OutOfMemory):
                self.pool.realign(geometry)

    @rule()
    def clear(self) -> None:
        self.pool.clear()
        self.held = []
        assert self.pool.mapped_bytes == self.padding_pages * self.page_set_bytes

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_invariants()
        assert self.pool.rows_used == len(self.held)
        assert self.pool.rows_backed == self.pool.rows_used + self.pool.rows_free_backed
        assert self.client.used_bytes == self.pool.mapped_bytes <= self.ledger.budget_bytes
        assert self.pool.rows_attainable <= self.pool.rows_total

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.pool.close()
            self.client.close()
            assert self.ledger.snapshot().used_bytes == 0


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
    ],
)
