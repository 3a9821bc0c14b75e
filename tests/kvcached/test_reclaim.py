"""Plain processes that keep a cache and give it back when somebody more important wants memory."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from kvcached._core import Ledger, LedgerClient
from kvcached.reclaim import ReclaimServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import StartChild

WAIT_S = 60.0


def claim_within(ledger: Ledger, client: LedgerClient, nbytes: int) -> None:
    """Claim as a waiter does: read the generation, try, sleep until it changes."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        generation = client.generation
        if client.try_claim(nbytes):
            client.set_want(0)
            return
        client.set_want(nbytes)
        assert time.monotonic() < deadline_s, ledger.snapshot().clients
        ledger.wait(generation, 0.25)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


CACHE = """
    import sys
    from kvcached._core import Ledger
    from kvcached.reclaim import ReclaimServer
    ledger = Ledger(sys.argv[1])
    client = ledger.register(name="cache", floor_bytes=int(sys.argv[2]), priority=int(sys.argv[3]))
    assert client.try_claim(int(sys.argv[4]))

    def give_back(nbytes):
        client.release(nbytes)
        print(f"gave {nbytes}")
        return nbytes

    with ReclaimServer(ledger, client, give_back):
        client.set_spare(client.used_bytes)
        print("ready")
        sys.stdin.read()
"""


def test_another_process_gives_its_cache_to_a_more_important_one(
    start_child: StartChild, ledger_path: str
) -> None:
    ledger = Ledger(ledger_path, 1000)
    child = start_child(CACHE, ledger_path, "300", "0", "900")
    assert child.line() == "ready"
    client = ledger.register(name="me", priority=1)
    claim_within(ledger, client, 600)
    assert child.line() == "gave 500"
    assert {info.name: info.used_bytes for info in ledger.snapshot().clients} == {"cache": 400, "me": 600}
    claim_within(ledger, client, 100)
    assert child.line() == "gave 100"
    client.set_want(500)  # beyond the floor of the other: nothing to be done
    assert ledger.snapshot().clients[0].asked_bytes == 0
    assert child.end() == 0


def test_the_less_important_give_first_and_to_nobody_less_important(ledger_path: str) -> None:
    ledger = Ledger(ledger_path, 1000)
    important, cheap, asking = (
        ledger.register(name=str(priority), priority=priority) for priority in (2, 0, 1)
    )
    for client, nbytes in ((important, 600), (cheap, 400)):
        assert client.try_claim(nbytes)
        client.set_spare(nbytes)
    with (
        ReclaimServer(ledger, important, lambda nbytes: pytest.fail(f"asked for {nbytes}")),
        ReclaimServer(ledger, cheap, lambda nbytes: cheap.release(nbytes) or nbytes),
    ):
        claim_within(ledger, asking, 400)
    assert (important.used_bytes, cheap.used_bytes) == (600, 0)


def test_a_callback_that_gives_less_or_fails_withdraws_the_offer_so_that_others_are_asked(
    ledger_path: str,
) -> None:
    ledger = Ledger(ledger_path, 1000)
    broken, empty, able, asking = (ledger.register(name=name) for name in ("broken", "empty", "able", "me"))
    for client, nbytes in ((broken, 400), (empty, 350), (able, 250)):
        assert client.try_claim(nbytes)
        client.set_spare(nbytes)

    def fail(nbytes: int) -> int:
        raise RuntimeError("no")

    with (
        ReclaimServer(ledger, broken, fail),
        ReclaimServer(ledger, empty, lambda nbytes: 0),
        ReclaimServer(ledger, able, lambda nbytes: able.release(nbytes) or nbytes),
    ):
        claim_within(ledger, asking, 200)
    assert (broken.used_bytes, empty.used_bytes, able.used_bytes) == (400, 350, 50)


@pytest.mark.parametrize("answer", [None, "much", -1, 1 << 80])
def test_what_a_callback_returns_does_not_matter(ledger_path: str, answer: object) -> None:
    ledger = Ledger(ledger_path, 1000)
    cache, asking = (ledger.register(name=name) for name in ("cache", "me"))
    assert cache.try_claim(1000)
    cache.set_spare(1000)

    def release(nbytes: int) -> object:
        cache.release(nbytes)
        return answer

    with ReclaimServer(ledger, cache, release):
        for _ in range(3):
            claim_within(ledger, asking, 100)
    assert (cache.used_bytes, asking.used_bytes) == (700, 300)


def test_a_callback_that_claims_to_have_given_what_it_kept_is_not_believed(ledger_path: str) -> None:
    ledger = Ledger(ledger_path, 1000)
    liar, able, asking = (ledger.register(name=name) for name in ("liar", "able", "me"))
    for client, nbytes in ((liar, 600), (able, 400)):  # of equals the fullest is asked first
        assert client.try_claim(nbytes)
        client.set_spare(nbytes)
    with (
        ReclaimServer(ledger, liar, lambda nbytes: nbytes),
        ReclaimServer(ledger, able, able.release),
    ):
        claim_within(ledger, asking, 200)
    assert (liar.used_bytes, able.used_bytes) == (600, 200)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_callback_that_failed_is_called_again_once_there_is_something_new_to_give(
    ledger_path: str, error: type[BaseException]
) -> None:
    ledger = Ledger(ledger_path, 1000)
    cache, asking = (ledger.register(name=name) for name in ("cache", "me"))
    assert cache.try_claim(1000)
    calls: list[int] = []

    def fail_once(nbytes: int) -> None:
        calls.append(nbytes)
        if len(calls) == 1:
            raise error
        cache.release(nbytes)

    with ReclaimServer(ledger, cache, fail_once):
        cache.set_spare(500)
        asking.set_want(100)
        until(lambda: bool(calls) and ledger.snapshot().clients[0].spare_bytes == 0)
        cache.set_spare(500)
        claim_within(ledger, asking, 100)
    assert calls == [100, 100]


def test_closing_the_client_ends_its_server_quietly(
    ledger_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(ledger_path, 1000)
    for is_called in (False, True):
        client, asking = (ledger.register(name=name) for name in ("cache", "me"))
        assert client.try_claim(1000)
        with ReclaimServer(ledger, client, lambda nbytes, client=client: client.close()):  # type: ignore[misc]
            if is_called:
                client.set_spare(500)
            else:
                client.close()
            claim_within(ledger, asking, 100)
            until(lambda: all(thread.name != "kvcached-reclaim" for thread in threading.enumerate()))
        asking.close()
    assert caplog.text == ""


def test_a_lowered_limit_is_answered_and_a_restored_one_lets_it_grow_again(ledger_path: str) -> None:
    ledger = Ledger(ledger_path, 1000)
    client = ledger.register(name="me", floor_bytes=100)
    (info,) = ledger.snapshot().clients
    with ReclaimServer(ledger, client, lambda nbytes: client.release(nbytes) or nbytes):
        assert client.try_claim(900)
        ledger.set_limit(slot=info.slot, pid=info.pid, limit_bytes=300)
        assert not client.try_claim(1)
        until(lambda: client.used_bytes == 300)
        assert ledger.recall(slot=info.slot, pid=info.pid, nbytes=150, lapse_s=WAIT_S) == 150
        until(lambda: client.used_bytes == 150)
        ledger.set_limit(slot=info.slot, pid=info.pid, limit_bytes=None)
    assert client.try_claim(850), "a recall asks; it binds nobody"


def test_a_dead_waiter_is_served_no_longer(start_child: StartChild, ledger_path: str) -> None:
    ledger = Ledger(ledger_path, 1000)
    holder = ledger.register(name="holder")
    assert holder.try_claim(1000)
    child = start_child(
        """
        import sys
        from kvcached._core import Ledger
        client = Ledger(sys.argv[1]).register(name="waiter")
        client.set_want(500, lapse_s=1000.0)
        print("wants")
        sys.stdin.read()
        """,
        ledger_path,
    )
    assert child.line() == "wants"
    holder.set_spare(1000)
    assert holder.asked_bytes() == 500
    child.kill()
    ledger.snapshot()
    assert holder.asked_bytes() == 0
