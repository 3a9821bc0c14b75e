"""What the warm reserve saves a step: `python bench/warm/run.py`.

One pool on the host backend, as under an engine with 16 layers whose pages are 2 MiB in all. Every 20 ms a
step takes eight pages it never had before (what it took is freed only between rounds, and then returned to
the system), so each of them has to be mapped by somebody: by the reserve's thread between the steps, or by
the step itself. Rounds with a reserve and without take turns.

Figures: `reserve_hit_share`, steps that found all their pages ready, of all steps but the first of a round,
which has nothing to learn from; `stall_us_p50`, `stall_us_p99`: a step's time for its pages, with the
reserve; `cold_stall_us_p50`, `_p99`: the same without one. `steps` counts those with a reserve.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(ROOT))

# ruff: noqa: E402 - the line above has to come first
from bench.common.report import Measured, run_bench
from kvcached._core import Backend, Geometry, KvPool

PAGE_BYTES = 2 << 20
STRIPES = 32
ROWS_PER_PAGE = 128
BURST_PAGES = 8
INTERVAL_S = 0.02
WARM_BYTES = 32 * PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure."""

    rounds: int
    steps: int
    """Per round; a step takes 16 MiB."""


FULL = Plan(rounds=5, steps=200)
QUICK = Plan(rounds=1, steps=50)


@dataclass(frozen=True, slots=True)
class Step:
    """Whether the pages were ready, and how long getting them took."""

    hit: bool
    stall_us: float


def main() -> int:
    """Run the bench."""
    return run_bench("warm", __doc__ or "", lambda quick: measure(QUICK if quick else FULL))


def measure(plan: Plan) -> Measured:
    """Rounds with and without a reserve, in turn."""
    warm: list[Step] = []
    cold: list[Step] = []
    for _ in range(plan.rounds):
        warm += _round(plan, WARM_BYTES)[1:]
        cold += _round(plan, 0)[1:]
    figures = {
        "reserve_hit_share": round(sum(step.hit for step in warm) / len(warm), 4),
        "stall_us_p50": _percentile(warm, 50),
        "stall_us_p99": _percentile(warm, 99),
        "cold_stall_us_p50": _percentile(cold, 50),
        "cold_stall_us_p99": _percentile(cold, 99),
        "steps": float(len(warm)),
    }
    return Measured(figures, planned=plan.rounds * (plan.steps - 1) * 2, made=len(warm) + len(cold))


def _round(plan: Plan, warm_bytes: int) -> list[Step]:
    pages = (plan.steps + 1) * BURST_PAGES + WARM_BYTES // PAGE_BYTES
    segment_bytes = PAGE_BYTES // STRIPES
    geometry = Geometry(
        rows=pages * ROWS_PER_PAGE,
        row_bytes=[segment_bytes // ROWS_PER_PAGE] * STRIPES,
        granularity_bytes=4096,
        page_bytes=segment_bytes,
    )
    if geometry.page_set_bytes != PAGE_BYTES:
        raise RuntimeError(
            f"a page is {geometry.page_set_bytes} bytes, not the {PAGE_BYTES} this bench is about"
        )
    pool = KvPool(Backend.host(), geometry, None, warm_bytes=warm_bytes)
    try:
        due_s = time.monotonic()
        steps = []
        for _ in range(plan.steps):
            steps.append(_step(pool))
            due_s = max(due_s + INTERVAL_S, time.monotonic())
            time.sleep(max(0.0, due_s - time.monotonic()))
        return steps
    finally:
        pool.close()


def _step(pool: KvPool) -> Step:
    rows = BURST_PAGES * ROWS_PER_PAGE
    hit = pool.rows_free_backed >= rows
    started_s = time.perf_counter()
    if not pool.grow(rows) or pool.alloc(rows) is None:
        raise RuntimeError(f"no memory for {rows} rows: {pool.stats()}")
    return Step(hit, (time.perf_counter() - started_s) * 1e6)


def _percentile(steps: list[Step], percent: int) -> float:
    ordered = sorted(step.stall_us for step in steps)
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 1)


if __name__ == "__main__":
    raise SystemExit(main())
