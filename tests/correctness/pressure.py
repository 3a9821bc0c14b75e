"""What puts an engine under memory pressure, and waiting for what follows."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from tests.correctness.engine import Completion
from tests.correctness.pool_process import PoolProcess

PROMPT_TOKENS = 192
PATIENCE_S = 60.0
"""No wait here is longer; what takes longer counts as a hang."""
IDLE_S = 2.5
"""Long enough for an idle scheduler to be asleep: its sleep lasts one second at a time."""


def prompt(seed: int, tokens: int = PROMPT_TOKENS) -> list[int]:
    """Random token ids that no other seed shares a prefix with; no special token among them."""
    return random.Random(seed).choices(range(300, 4000), k=tokens)


@contextmanager
def budget_taken(holder: PoolProcess) -> Iterator[Callable[[], None]]:
    """Another process holds all of the budget that is nobody's floor; calling the yield gives it back."""
    holder.call("fill")
    try:
        yield lambda: holder.call("drain")
    finally:
        holder.call("drain")


def in_background(work: Callable[[], Completion]) -> Future[Completion]:
    """Run on a daemon thread, so that a test that gives up does not wait for a request that hangs."""
    future: Future[Completion] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def until(condition: Callable[[], bool]) -> None:
    """Return once it holds; fail after `PATIENCE_S`."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            pytest.fail(f"did not come true within {PATIENCE_S:.0f} s")
        time.sleep(0.01)
