"""The process that gives back: fills a cache with real pages, and serves the ledger's asking on its own.

Run by `run.py` as `python holder.py LEDGER FLOOR_PAGES CACHE_PAGES`. Prints `ready` and then, for every line
it reads, refills its cache and prints how many pages it holds.
"""

import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(ROOT))

# ruff: noqa: E402 - the line above has to come first
from kvcached._core import Backend, Geometry, KvPool, Ledger
from kvcached.reclaim import ReclaimServer

ROW_BYTES = 4096
PAGE_BYTES = 64 << 10
GEOMETRY = Geometry(
    rows=1 << 14, row_bytes=[ROW_BYTES] * 4, granularity_bytes=4096, page_bytes=PAGE_BYTES, reserved_rows=0
)
PAGE_SET_BYTES = GEOMETRY.page_set_bytes


class PageCache:
    """Pages of KV rows that nobody is using just now, oldest first."""

    def __init__(self, ledger: Ledger, floor_pages: int) -> None:
        self.client = ledger.register(name="holder", floor_bytes=floor_pages * PAGE_SET_BYTES)
        self._pool = KvPool(Backend.host(), GEOMETRY, self.client)
        self._pages: list[object] = []
        self._lock = threading.Lock()

    def fill(self, pages: int) -> int:
        """Take pages until the cache holds so many or the ledger refuses; how many it holds."""
        with self._lock:
            while len(self._pages) < pages and self._pool.grow(GEOMETRY.rows_per_page):
                self._pages.append(self._pool.alloc(GEOMETRY.rows_per_page))
            self.client.set_spare(self.client.used_bytes)
            return len(self._pages)

    def shrink(self, nbytes: int) -> int:
        """Drop as many pages as were asked for; the bytes that went back."""
        with self._lock:
            for _ in range(min(len(self._pages), -(-nbytes // PAGE_SET_BYTES))):
                self._pool.free(self._pages.pop(0))  # type: ignore[arg-type]
            released_bytes = self._pool.trim(0)
            self.client.set_spare(self.client.used_bytes)
            return released_bytes


def main() -> None:
    """Serve until standard input ends."""
    ledger = Ledger(sys.argv[1])
    floor_pages, cache_pages = int(sys.argv[2]), int(sys.argv[3])
    cache = PageCache(ledger, floor_pages)
    with ReclaimServer(ledger, cache.client, cache.shrink):
        print("ready", flush=True)
        for _ in sys.stdin:
            print(cache.fill(cache_pages), flush=True)


if __name__ == "__main__":
    main()
