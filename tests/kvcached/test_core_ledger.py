"""The compiled ledger as Python sees it; its protocol between processes is tested in C++."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from kvcached import _core

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> str:
    tmp_path.chmod(0o700)
    return str(tmp_path / "device.ledger")


def test_limits_cross_as_none_and_numbers(path: str) -> None:
    ledger = _core.Ledger(path, 1000)
    client = ledger.register(name="a", limit_bytes=300, priority=4)
    (info,) = ledger.snapshot().clients
    assert (info.name, info.limit_bytes, info.priority, info.pid) == ("a", 300, 4, os.getpid())
    client.set_limit(None)
    assert ledger.snapshot().clients[0].limit_bytes is None
    assert client.attainable_bytes() == 1000
    with pytest.raises(_core.Misuse, match="limit of -1 bytes"):
        client.set_limit(-1)


def test_a_waiter_lets_other_threads_run_and_wakes_them_by_release(path: str) -> None:
    ledger = _core.Ledger(path, 1000)
    client = ledger.register(name="a")
    assert client.try_claim(1000)
    generation = client.generation
    releaser = threading.Timer(0.05, client.release, args=(1000,))
    releaser.start()  # runs only if the wait below gives the interpreter up
    assert ledger.wait(generation, 30.0) != generation
    releaser.join()


def test_a_waiter_can_be_interrupted(path: str) -> None:
    ledger = _core.Ledger(path, 1000)

    def interrupted(_signum: int, _frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupted)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            ledger.wait(ledger.snapshot().generation, 60.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_a_wait_without_time_or_with_nonsense_returns_or_refuses(path: str) -> None:
    ledger = _core.Ledger(path, 1000)
    generation = ledger.snapshot().generation
    assert ledger.wait(generation, 0.0) == generation
    assert ledger.wait(generation, -1.0) == generation
    with pytest.raises(_core.Misuse, match="finite"):
        ledger.wait(generation, float("nan"))


def test_a_client_that_pays_for_a_pool_cannot_be_closed(path: str) -> None:
    """Closed, it gave its credit to others while the pool kept the memory."""
    ledger = _core.Ledger(path, 1 << 30)
    client = ledger.register(name="a")
    geometry = _core.Geometry(rows=4096, row_bytes=[1024], granularity_bytes=4096, page_bytes=65536)
    pool = _core.KvPool(_core.Backend.host(), geometry, client, warm_bytes=1 << 20, gives_back=True)
    assert pool.grow(1000)
    with pytest.raises(_core.Misuse, match="'a' still pays for a pool or range"):
        client.close()
    assert client.used_bytes == pool.mapped_bytes == ledger.snapshot().used_bytes
    pool.close()
    client.close()
    client.close()
    with pytest.raises(_core.Misuse, match="is closed"):
        client.set_priority(1)
    assert ledger.snapshot().clients == []


def test_a_client_goes_when_its_last_reference_goes(path: str) -> None:
    ledger = _core.Ledger(path, 1000)
    client = ledger.register(name="a", floor_bytes=1000)
    with pytest.raises(_core.LedgerRefused, match="smallest budget that works is 1001"):
        ledger.register(name="b", floor_bytes=1)
    del client
    assert ledger.register(name="b", floor_bytes=1).attainable_bytes() == 1000


def test_a_forked_child_is_told_to_open_its_own(path: str) -> None:
    ledger = _core.Ledger(path, 1000)
    client = ledger.register(name="parent")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            client.try_claim(1)
        except _core.Misuse:
            own = _core.Ledger(path).register(name="child")
            status = 0 if own.try_claim(10) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert client.try_claim(1000)


def test_names_written_by_others_never_break_a_reader(path: str) -> None:
    ledger = _core.Ledger(path, 1000)
    client = ledger.register(name="caf\u00e9")
    with open(path, "r+b") as file:
        content = file.read()
        at = content.index("caf\u00e9".encode())
        file.seek(at)
        file.write(b"\xff\xfe" + b"x" * 46)
    name = ledger.snapshot().clients[0].name
    assert name.startswith("\ufffd\ufffdxx")
    assert len(name) == 48
    client.close()


def test_a_relative_path_keeps_its_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    ledger = _core.Ledger("device.ledger", 1000)
    monkeypatch.chdir("/")
    assert ledger.path == str(tmp_path / "device.ledger")
    assert ledger.register(name="a").try_claim(1)
