"""The process whose limit is lowered: a plain pool with a warm reserve, which claims all the time meanwhile.

Run by `run.py` as `python limited.py LEDGER`. Prints `ready`, then answers each line it reads: `warm` lets a
burst come and go and prints the bytes that rows in use hold; `claim` prints `claiming`, claims and releases
until the ledger refuses, and prints when the last claim was granted, in nanoseconds of the monotonic clock.
"""

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(ROOT))

# ruff: noqa: E402 - the line above has to come first
from kvcached._core import Backend, Ledger
from kvcached.kv_pool import KVCachePool

PAGE_BYTES = 64 << 10
ROWS_PER_PAGE = 16
BURST_PAGES = 8
WARM_BYTES = 64 << 20


def main() -> None:
    """Serve until standard input ends."""
    client = Ledger(sys.argv[1]).register(name="limited")
    with KVCachePool(
        Backend.host(),
        layers=2,
        rows=1 << 14,
        row_shape=(PAGE_BYTES // ROWS_PER_PAGE // 2,),
        dtype="float16",
        client=client,
        page_bytes=PAGE_BYTES,
        warm_bytes=WARM_BYTES,
    ) as pool:
        print("ready", flush=True)
        for line in sys.stdin:
            if line == "warm\n":
                rows = pool.alloc(BURST_PAGES * ROWS_PER_PAGE)
                pool.free(rows)
                in_use_pages = 1  # the padding page
                print(in_use_pages * pool.geometry.page_set_bytes, flush=True)
                continue
            print("claiming", flush=True)
            granted_ns = 0
            while client.try_claim(1):
                granted_ns = time.monotonic_ns()
                client.release(1)
            print(granted_ns, flush=True)


if __name__ == "__main__":
    main()
