"""The sampler sees memory of a real client of a real ledger, through the kernel."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import demo.sampler
from demo.sampler import MAX_TRIES, MemorySampler, read_memory
from kvcached._core import Backend, Geometry, KvPool, Ledger
from kvcached.proc import rss_bytes

PAGE_BYTES = 64 * 2**10
BUDGET_BYTES = 6 * 2**20
ROWS = 1000  # nearly 4 MiB: two pools with so many rows are over the budget


def wait_for_samples(sampler: MemorySampler, name: str, at_least: int) -> None:
    deadline = time.monotonic() + 30
    while sampler.latest().get(name, -1) < at_least and time.monotonic() < deadline:
        time.sleep(0.05)


def test_mapped_bytes_follow_what_a_pool_backs(tmp_path: Path) -> None:
    path = tmp_path / "private" / "host0.ledger"
    path.parent.mkdir(mode=0o700)
    ledger = Ledger(str(path), 64 * 2**20)
    client = ledger.register(name="model")
    backend = Backend.host()
    geometry = Geometry(
        rows=4096,
        row_bytes=[1024] * 4,
        granularity_bytes=backend.capabilities.granularity_bytes,
        page_bytes=PAGE_BYTES,
    )
    pool = KvPool(backend, geometry, client)
    sampler = MemorySampler(path, ["model", "absent"])
    try:
        pool.publish()
        sampler.start()
        assert pool.grow(1000)
        grown_bytes = pool.mapped_bytes
        assert grown_bytes >= 1000 * 4 * 1024
        wait_for_samples(sampler, "model", grown_bytes)
        series = sampler.stop()
    finally:
        pool.close()
        client.close()
    assert series.peaks() == {"model": grown_bytes, "absent": 0}
    assert len(series.times_s) == len(series.mapped_bytes["model"])


@contextmanager
def two_pools(folder: Path) -> Iterator[tuple[Ledger, list[KvPool]]]:
    """Two clients of one budget that is too small for `ROWS` rows of both."""
    path = folder / "private" / "host0.ledger"
    path.parent.mkdir(mode=0o700)
    ledger = Ledger(str(path), BUDGET_BYTES)
    backend = Backend.host()
    granularity_bytes = backend.capabilities.granularity_bytes
    geometry = Geometry(
        rows=4096, row_bytes=[1024] * 4, granularity_bytes=granularity_bytes, page_bytes=PAGE_BYTES
    )
    with (
        closing(ledger.register(name="a")) as first,
        closing(ledger.register(name="b")) as second,
        closing(KvPool(backend, geometry, first)) as a,
        closing(KvPool(backend, geometry, second)) as b,
    ):
        for pool in (a, b):
            pool.publish()
        yield ledger, [a, b]


def move(source: KvPool, target: KvPool) -> None:
    """All rows of one pool go; the other takes as much."""
    source.trim()
    assert target.grow(ROWS)


def after_first_look(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Let something happen whenever the sampler has read the first of its two processes."""
    looks = 0

    def reads_and_acts(pid: int, base: int, nbytes: int) -> int:
        nonlocal looks
        looks += 1
        seen_bytes = rss_bytes(pid, base, nbytes)
        if looks % 2 == 1:
            action()
        return seen_bytes

    monkeypatch.setattr(demo.sampler, "rss_bytes", reads_and_acts)


def test_memory_that_moves_during_a_reading_is_not_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_pools(tmp_path) as (ledger, [a, b]):
        assert a.grow(ROWS)
        moves = [lambda: move(a, b)]
        after_first_look(monkeypatch, lambda: moves.pop()() if moves else None)
        torn = read_memory(ledger, max_tries=1)
        assert torn.torn
        assert sum(torn.mapped_bytes.values()) > BUDGET_BYTES  # the overrun that never was
        move(b, a)
        moves.append(lambda: move(a, b))
        reading = read_memory(ledger)
        assert not reading.torn
        assert reading.mapped_bytes == {"a": a.mapped_bytes, "b": b.mapped_bytes}


def test_memory_that_never_rests_ends_in_a_torn_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_pools(tmp_path) as (ledger, [a, b]):
        pools = [a, b]
        assert a.grow(ROWS)
        moved = []

        def to_and_fro() -> None:
            move(*pools)
            pools.reverse()
            moved.append(1)

        after_first_look(monkeypatch, to_and_fro)
        assert read_memory(ledger).torn
        assert len(moved) == MAX_TRIES


def test_memory_that_only_grows_during_a_reading_tears_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_pools(tmp_path) as (ledger, [a, b]):
        grown: list[bool] = []
        after_first_look(monkeypatch, lambda: grown.append(b.grow(ROWS)))
        reading = read_memory(ledger)
        assert grown == [True]
        assert not reading.torn
        assert reading.mapped_bytes == {"a": a.mapped_bytes, "b": b.mapped_bytes}
