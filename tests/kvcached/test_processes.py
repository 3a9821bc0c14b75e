"""Two and more real processes on one ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvcached import proc
from kvcached._core import Backend, Ledger
from kvcached.config import Config
from kvcached.errors import ConfigError, Misuse
from kvcached.kv_pool import KVCachePool
from kvcached.ledgers import find_ledgers, open_ledger

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Child, StartChild

PAGE_SET_BYTES = 2 * (64 << 10)
ROWS_PER_PAGE = 64
BUDGET_PAGES = 20

ENGINE = """
    import sys
    import kvcached
    cache = kvcached.alloc_kvcache(
        layers=1, rows=100_000, row_shape=(8, 64), name=sys.argv[2], ledger_path=sys.argv[1], warm_rows=0
    )
    held = []
    print("ready")
    for line in sys.stdin:
        word, count = line.split()
        if word == "take":
            rows = cache.try_alloc(int(count))
            if rows is not None:
                held.append(rows)
            print("yes" if rows is not None else "no")
        else:
            cache.free(held.pop())
            print("freed")
"""


def engine(start_child: StartChild, path: str, name: str) -> Child:
    child = start_child(ENGINE, path, name)
    assert child.line() == "ready", child.errors()
    return child


def ask(child: Child, question: str) -> str:
    child.say(question)
    return child.line()


def test_two_processes_share_one_budget(start_child: StartChild, ledger_path: str) -> None:
    ledger = Ledger(ledger_path, BUDGET_PAGES * PAGE_SET_BYTES)
    first, second = (engine(start_child, ledger_path, name) for name in ("first", "second"))
    taken = {first: 0, second: 0}
    for child in (first, second, first):
        while ask(child, f"take {3 * ROWS_PER_PAGE}") == "yes":
            taken[child] += 1
            snapshot = ledger.snapshot()
            assert snapshot.used_bytes <= ledger.budget_bytes
            for client in snapshot.clients:
                assert proc.rss_bytes(client.pid, client.range_base, client.range_bytes) == client.used_bytes
    assert taken[first] == 6  # (20 - 2 padding pages) ÷ 3
    assert taken[second] == 0
    for _ in range(4):
        assert ask(first, "free 0") == "freed"
    while ask(second, f"take {3 * ROWS_PER_PAGE}") == "yes":
        taken[second] += 1
    assert taken[second] == 4
    assert {client.name: client.used_bytes for client in ledger.snapshot().clients} == {
        "first": 7 * PAGE_SET_BYTES,
        "second": 13 * PAGE_SET_BYTES,
    }


def test_a_killed_process_frees_its_credit(start_child: StartChild, ledger_path: str) -> None:
    ledger = Ledger(ledger_path, BUDGET_PAGES * PAGE_SET_BYTES)
    heir = KVCachePool(
        Backend.host(), layers=1, rows=100_000, row_shape=(8, 64), client=ledger.register(name="heir")
    )
    victim = engine(start_child, ledger_path, "victim")
    assert ask(victim, f"take {18 * ROWS_PER_PAGE}") == "yes"
    assert heir.try_alloc(10 * ROWS_PER_PAGE) is None
    victim.kill()
    assert len(heir.alloc(19 * ROWS_PER_PAGE)) == 19 * ROWS_PER_PAGE
    assert [client.name for client in ledger.snapshot().clients] == ["heir"]
    heir.close()


def test_a_death_wakes_whoever_waits(start_child: StartChild, ledger_path: str) -> None:
    ledger = Ledger(ledger_path, BUDGET_PAGES * PAGE_SET_BYTES)
    victim = engine(start_child, ledger_path, "victim")
    generation = ledger.snapshot().generation
    victim.kill()
    assert ledger.wait(generation, 0.01) != generation


def test_first_come_decides_the_default_budget(ledger_path: str) -> None:
    first = open_ledger(Config(ledger_path=ledger_path), "cpu")
    client = first.register(name="living")
    assert open_ledger(Config(ledger_path=ledger_path), "cpu").budget_bytes == first.budget_bytes
    with pytest.raises(Misuse, match=str(first.budget_bytes)):
        open_ledger(Config(ledger_path=ledger_path, budget_bytes=1 << 20), "cpu")
    client.close()
    assert open_ledger(Config(ledger_path=ledger_path, budget_bytes=1 << 20), "cpu").budget_bytes == 1 << 20


def test_a_gpu_ledger_needs_a_budget_from_somebody(ledger_path: str) -> None:
    with pytest.raises(ConfigError, match="KVCACHED_BUDGET_BYTES"):
        open_ledger(Config(ledger_path=ledger_path), "cuda:0")


def test_ledgers_are_found_and_made_in_the_default_folder(tmp_path: Path) -> None:
    assert find_ledgers() == []
    open_ledger(Config(budget_bytes=1 << 20), "cpu")
    open_ledger(Config(budget_bytes=1 << 20), "cuda:1")
    folder = tmp_path / "runtime" / "kvcached"
    assert find_ledgers() == [str(folder / "cuda1.ledger"), str(folder / "host0.ledger")]
    assert folder.stat().st_mode & 0o777 == 0o700
