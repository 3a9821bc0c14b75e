"""A process ends as it should, whatever its threads are doing in the compiled core."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from kvcached import _core

if TYPE_CHECKING:
    from conftest import StartChild

ENDS = 4
"""Whether a thread is caught in the act is chance; these are enough to find the fault nearly always."""

DAEMONS = """
    import sys, threading, time
    from kvcached._core import Backend, Geometry, KvPool, Ledger, VirtualRange

    ledger = Ledger(sys.argv[1], 1 << 30)
    client = ledger.register(name="noise")
    geometry = Geometry(rows=1 << 16, row_bytes=[1024] * 8, granularity_bytes=4096, page_bytes=65536)
    pool = KvPool(Backend.host(), geometry)
    memory = VirtualRange(Backend.host(), 64 << 20, 1 << 20)

    def wait():
        ledger.wait(client.generation, 0.25)

    def settle():
        client.set_priority(1)

    def grow():
        pool.grow(2000), pool.trim()

    def map_all():
        memory.map(0, memory.nbytes), memory.unmap(0, memory.nbytes)

    def for_ever(call):
        while True:
            call()

    for call in (wait, wait, settle, grow, map_all):
        threading.Thread(target=for_ever, args=(call,), daemon=True).start()
    time.sleep(0.1)
"""

WITH_A_LATE_HANDLER = (
    """
    import atexit

    atexit.register(lambda: (pool.grow(9000), print(pool.rows_free_backed >= 9000)))  # after our own
    """
    + DAEMONS
)


@pytest.mark.parametrize("round_", range(ENDS))
def test_daemon_threads_inside_a_call_do_not_end_the_process_by_a_signal(
    start_child: StartChild, ledger_path: str, round_: int
) -> None:
    child = start_child(DAEMONS, ledger_path)
    assert child.end() == 0, f"round {round_}: {child.errors()}"


def test_what_is_called_at_exit_waits_for_no_thread_that_will_not_come_back(
    start_child: StartChild, ledger_path: str
) -> None:
    child = start_child(WITH_A_LATE_HANDLER.replace("pool.trim()", "pool.alloc(0)"), ledger_path)
    assert child.line() == "True"
    assert child.end() == 0


def test_a_child_forked_off_a_busy_range_is_refused_and_does_not_hang() -> None:
    memory = _core.VirtualRange(_core.Backend.host(), 256 << 20, 1 << 20)
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            memory.map(0, memory.nbytes)
            memory.unmap(0, memory.nbytes)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(5):
            time.sleep(0.01)
            assert _exit_code_of_child(memory) == 0
    finally:
        is_over.set()
        worker.join()


def _exit_code_of_child(memory: _core.VirtualRange) -> int:
    child = os.fork()
    if child == 0:
        try:
            memory.close()  # nothing here is the child's
            _ = memory.mapped_bytes
        except _core.Misuse:
            os._exit(0)
        os._exit(1)
    deadline_s = time.monotonic() + 20.0
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline_s:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.001)
