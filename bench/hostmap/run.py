"""What host memory costs: putting pages under a pool, and creating a pool.

Fault-in: a pool of 32 stripes grows page by page (`fault_in_ratio`; one kernel call per stripe and page
of 64 KiB) or by runs of eight pages, against one anonymous mapping of the same bytes that is populated with
one call per step, with the same advice on huge pages, in the same process. Blocks alternate, the first pair
is dropped, figures are medians of the pairs' ratios. `_strict`, `_exportable` (against a populated shared
file) and `_huge` (pages of 2 MiB, huge pages on both sides) are the same for the other kinds of backend. In
the pair that is dropped the kernel has to report as much more resident memory as was grown.

Creation: pools of 1 TiB and of 1 GiB of addresses in eight stripes, in turn; time is the median, resident
memory the largest growth seen of the whole process. Nearly all of `create_ms` and of `create_rss_bytes` is
the pool's padding page, 64 KiB per stripe that are mapped and populated at once: `create_ratio_1t_1g`
therefore says what a user waits for, not how creation itself grows. `_bare` says that: the same without
reserved rows, so with nothing mapped. `_64_stripes`, as a model of 32 layers has it, is above a MiB by its
padding page alone; `create_rss_tables_bytes` is its growth less that page.
"""

import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(ROOT))

# ruff: noqa: E402 - the line above has to come first
from bench.common.report import Measured, run_bench
from kvcached._core import Backend, Geometry, KvPool, Ledger, LedgerClient
from kvcached.proc import rss_bytes

POPULATE_WRITE = 23  # madvise; Python has no name for it
MAP_NORESERVE = 0x4000
HUGE_BYTES = 2 << 20
ROW_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Kind:
    """One way of backing, and the raw way to compare it with."""

    suffix: str
    backend: Backend
    stripes: int = 32
    page_bytes: int = 64 << 10
    run_pages: int = 1


KINDS = (
    Kind("", Backend.host()),
    Kind("_runs_of_8", Backend.host(), run_pages=8),
    Kind("_strict", Backend.host(strict=True)),
    Kind("_exportable", Backend.host(exportable=True)),
    Kind("_huge", Backend.host(), stripes=4, page_bytes=HUGE_BYTES),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure."""

    block_bytes: int
    pairs: int
    creations: int


FULL = Plan(block_bytes=512 << 20, pairs=11, creations=51)
QUICK = Plan(block_bytes=64 << 20, pairs=3, creations=11)


def measure(plan: Plan) -> Measured:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder:
        client = Ledger(str(Path(folder) / "host0.ledger"), 1 << 42).register(name="bench")
        figures: dict[str, float] = _create_figures(plan, client)
        for kind in KINDS:
            pairs = list(_fault_in_pairs(plan, kind, client))
            ratio = statistics.median(ours / raw for ours, raw in pairs)
            figures[f"fault_in_ratio{kind.suffix}"] = round(ratio, 4)
            mib = plan.block_bytes / (1 << 20)
            figures[f"fault_in_us_per_mib{kind.suffix}"] = round(
                statistics.median(ours for ours, _ in pairs) / mib * 1e6, 1
            )
    count = plan.creations + plan.pairs * len(KINDS)
    return Measured(figures, planned=count, made=count)


def _fault_in_pairs(plan: Plan, kind: Kind, client: LedgerClient) -> Iterator[tuple[float, float]]:
    """Seconds that a pool and the kernel alone take for one block, pair by pair."""
    geometry = _geometry(8 * plan.block_bytes, kind.stripes, kind.page_bytes)
    step_bytes = kind.run_pages * geometry.page_set_bytes
    pool = KvPool(kind.backend, geometry, client)
    for pair in range(plan.pairs + 1):
        if pair == 0:
            verify_resident(pool, plan.block_bytes // step_bytes * kind.run_pages * geometry.rows_per_page)
        if pair % 2:
            raw_s = _populate_s(plan.block_bytes, step_bytes, kind)
            ours_s = _grow_s(pool, plan.block_bytes // step_bytes, kind.run_pages * geometry.rows_per_page)
        else:
            ours_s = _grow_s(pool, plan.block_bytes // step_bytes, kind.run_pages * geometry.rows_per_page)
            raw_s = _populate_s(plan.block_bytes, step_bytes, kind)
        if pair:
            yield ours_s, raw_s
    pool.close()


def verify_resident(pool: KvPool, rows: int) -> None:
    """RuntimeError unless the kernel reports memory for all that the pool counts as mapped."""
    pool.grow(rows)
    expected_bytes = pool.mapped_bytes
    seen_bytes = rss_bytes(os.getpid(), pool.base_address, pool.geometry.reservation_bytes)
    pool.trim()
    if seen_bytes != expected_bytes:
        raise RuntimeError(f"{pool!r} counts {expected_bytes} bytes, of which {seen_bytes} are resident")


def _grow_s(pool: KvPool, steps: int, step_rows: int) -> float:
    pool.trim()
    before_bytes, spare_rows = pool.mapped_bytes, pool.rows_free_backed
    started_s = time.perf_counter()
    for step in range(1, steps + 1):
        pool.grow(spare_rows + step * step_rows)
    seconds = time.perf_counter() - started_s
    page_sets = (pool.mapped_bytes - before_bytes) // pool.geometry.page_set_bytes
    if page_sets * pool.geometry.rows_per_page != steps * step_rows:
        raise RuntimeError(f"{page_sets} pages were mapped by {steps} steps of {step_rows} rows")
    pool.trim()
    return seconds


def _populate_s(block_bytes: int, step_bytes: int, kind: Kind) -> float:
    huge = kind.page_bytes % HUGE_BYTES == 0
    with _mapping(block_bytes + HUGE_BYTES, shared=kind.backend.capabilities.exportable) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        started_s = time.perf_counter()
        for offset in range(0, block_bytes, step_bytes):
            memory.madvise(POPULATE_WRITE, offset, step_bytes)
        return time.perf_counter() - started_s


@contextmanager
def _mapping(nbytes: int, *, shared: bool) -> Iterator[mmap.mmap]:
    if shared:
        fd = os.memfd_create("raw")
        os.truncate(fd, nbytes)
        memory = mmap.mmap(fd, nbytes)
        os.close(fd)
    else:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    with memory:
        yield memory


@dataclass(frozen=True, slots=True)
class Creation:
    """What one pool cost to create."""

    seconds: float
    rss_bytes: int
    padding_bytes: int


def _create_figures(plan: Plan, client: LedgerClient) -> dict[str, float]:
    large, small, wide, large_bare, small_bare = [], [], [], [], []
    for _ in range(plan.creations):
        large.append(_create(1 << 40, 8, client))
        small.append(_create(1 << 30, 8, client))
        wide.append(_create(1 << 40, 64, client))
        large_bare.append(_create(1 << 40, 8, client, reserved_rows=0))
        small_bare.append(_create(1 << 30, 8, client, reserved_rows=0))
    return {
        "create_ratio_1t_1g": round(_median_ms(large) / _median_ms(small), 4),
        "create_ms": round(_median_ms(large), 4),
        "create_rss_bytes": max(one.rss_bytes for one in large),
        "create_ratio_1t_1g_bare": round(_median_ms(large_bare) / _median_ms(small_bare), 4),
        "create_ms_bare": round(_median_ms(large_bare), 4),
        "create_rss_bytes_bare": max(one.rss_bytes for one in large_bare),
        "create_ms_64_stripes": round(_median_ms(wide), 4),
        "create_rss_bytes_64_stripes": max(one.rss_bytes for one in wide),
        "create_rss_tables_bytes": max(one.rss_bytes - one.padding_bytes for one in wide),
    }


def _median_ms(creations: Sequence[Creation]) -> float:
    return statistics.median(one.seconds for one in creations) * 1e3


def _create(
    reservation_bytes: int, stripes: int, client: LedgerClient, *, reserved_rows: int = 1
) -> Creation:
    geometry = _geometry(reservation_bytes, stripes, 64 << 10, reserved_rows)
    backend = Backend.host()
    rss_before_bytes = _rss_bytes()
    started_s = time.perf_counter()
    pool = KvPool(backend, geometry, client)
    seconds = time.perf_counter() - started_s
    creation = Creation(seconds, _rss_bytes() - rss_before_bytes, pool.mapped_bytes)
    pool.close()
    return creation


def _geometry(reservation_bytes: int, stripes: int, page_bytes: int, reserved_rows: int = 1) -> Geometry:
    return Geometry(
        rows=reservation_bytes // stripes // ROW_BYTES,
        row_bytes=[ROW_BYTES] * stripes,
        granularity_bytes=4096,
        page_bytes=page_bytes,
        reserved_rows=reserved_rows,
    )


def _rss_bytes() -> int:
    """Resident memory of this process, counted by the kernel page by page."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Rss:"))


if __name__ == "__main__":
    raise SystemExit(run_bench("hostmap", __doc__ or "", lambda quick: measure(QUICK if quick else FULL)))
