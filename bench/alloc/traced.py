"""The child whose system calls are counted.

`python -m bench.alloc.traced pairs ROWS COUNT`, or `known COUNT` for calls that are known to be made.
"""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack

from bench.alloc.syscalls import BEGIN_FD, END_FD, mark, wait_for_tracer

POOL_ROWS = 1 << 20
_WARM_UP_PAIRS = 1000


def main(arguments: list[str]) -> int:
    """Set up, wait for the tracer, run what is counted between the marks."""
    with ExitStack() as stack:
        match arguments:
            case ["known", count]:
                counted = _known(int(count))
            case ["pairs", rows, count]:
                counted = _pairs(stack, int(rows), int(count))
            case _:
                raise SystemExit(__doc__)
        wait_for_tracer()
        mark(BEGIN_FD)
        counted()
        mark(END_FD)
    return 0


def _known(count: int) -> Callable[[], None]:
    """As many system calls as asked for."""

    def run() -> None:
        for _ in range(count):
            os.getppid()

    return run


def _pairs(stack: ExitStack, rows: int, count: int) -> Callable[[], None]:
    import torch

    from bench.alloc.pairs import block_us, fill_half, make_elastic

    torch.set_num_threads(1)
    allocator = make_elastic(stack, POOL_ROWS).allocator
    fill_half(allocator)
    block_us(allocator, rows, _WARM_UP_PAIRS)
    return lambda: _discard(block_us(allocator, rows, count))


def _discard(_: float) -> None:
    """What a traced block took says nothing."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
