"""What taking and returning rows costs, and how many pages it leaves mapped: `python bench/alloc/run.py`.

A pair is one `alloc` and one `free` of k rows through the allocator that the plugin gives SGLang
(`kvcached.sglang.allocator`): int64 tensor out, int64 tensor in, with ledger, warm reserve, double-free check
and metrics, one torch thread. The pool is half full (`pairs.py` says how) and its pages are at hand. Scrapes
before and after each block must have counted each of its rows; a row freed twice must have been refused.

Figures: `pair_us_kK`, microseconds per pair, the best block, 1M rows; `pair_us_k4096_scattered`, the same
where every free row lies by itself. `vs_stock_*`: the time of SGLang's own token allocator over ours, the
median of the ratios of blocks that alternate, with pools of 1M and of 64K rows; `_min` is the least over
k = 1, 16 and 256.
`syscalls_per_pair`: system calls of all threads over pairs of k = 1, 16, 256 and 4096, counted with ptrace
from outside, after the same tracer has counted right a child that makes a known number.
`pages_over_needed_POLICY`: pages mapped over pages needed after drops of the load, for 1,024 rows per page,
and `_16` for 16 (`churn.py` says how), where a running request takes 16 rows at a time; `_by_token` where all
running requests take one row each per step by a common call, as SGLang does with a page size of 1.
"""

import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(ROOT))

# ruff: noqa: E402 - the line above has to come first
import torch

from bench.alloc.churn import Policy, pages_over_needed, read_trace
from bench.alloc.pairs import Elastic, block_us, fill_half, make_elastic, scatter_half, stock_allocator
from bench.alloc.syscalls import count_syscalls
from bench.common.report import Measured, run_bench

SMALL_K, LARGE_K = (1, 16, 256), 4096
POLICIES: dict[str, Policy] = {"bestfit": "best_fit", "mostfilled": "most_filled"}
KNOWN_CALLS = 1000
TRACE_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure."""

    blocks: int
    elastic_pairs: int
    """Per block."""
    stock_pairs: int
    traced_pairs: int
    """Per k."""


FULL = Plan(blocks=15, elastic_pairs=5000, stock_pairs=200, traced_pairs=10_000)
QUICK = Plan(blocks=5, elastic_pairs=1000, stock_pairs=50, traced_pairs=2500)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Times per pair of alternating blocks."""

    elastic_us: list[float]
    stock_us: list[float]

    @property
    def best_us(self) -> float:
        """Ours, least disturbed."""
        return min(self.elastic_us)

    @property
    def ratio(self) -> float:
        """Stock over ours."""
        return statistics.median(s / e for s, e in zip(self.stock_us, self.elastic_us, strict=True))


def main() -> int:
    """Run the bench."""
    return run_bench("alloc", __doc__ or "", lambda quick: measure(QUICK if quick else FULL))


def measure(plan: Plan) -> Measured:
    """Time, count and compare."""
    torch.set_num_threads(1)
    million = _alternate(1 << 20, plan)
    small = _alternate(1 << 16, plan)
    figures = {f"pair_us_k{k}": round(blocks.best_us, 2) for k, blocks in million.items()}
    figures |= {
        f"pair_us_k{LARGE_K}_scattered": round(_scattered_us(plan), 2),
        "vs_stock_1m_min": round(min(million[k].ratio for k in SMALL_K), 1),
        "vs_stock_1m_k4096": round(million[LARGE_K].ratio, 1),
        "vs_stock_64k_min": round(min(small[k].ratio for k in SMALL_K), 2),
        "vs_stock_64k_k4096": round(small[LARGE_K].ratio, 2),
        "syscalls_per_pair": _syscalls_per_pair(plan.traced_pairs),
    }
    trace = read_trace()
    for name, policy in POLICIES.items():
        for rows_per_page, size in ((1024, ""), (16, "_16")):
            for block_rows, way in ((16, ""), (1, "_by_token")):
                figures[f"pages_over_needed_{name}{size}{way}"] = round(
                    pages_over_needed(trace, rows_per_page, policy, block_rows), 3
                )
    made = sum(len(b.elastic_us) for b in (*million.values(), *small.values()))
    return Measured(figures, planned=2 * (len(SMALL_K) + 1) * plan.blocks, made=made)


def _alternate(rows: int, plan: Plan) -> dict[int, Blocks]:
    """Blocks of both allocators by turns, for every k."""
    with ExitStack() as stack:
        elastic, stock = make_elastic(stack, rows), stock_allocator(rows)
        fill_half(elastic.allocator)
        fill_half(stock)
        elastic.verify()
        return {k: _blocks(elastic, stock, k, plan) for k in (*SMALL_K, LARGE_K)}


def _blocks(elastic: Elastic, stock: Any, rows: int, plan: Plan) -> Blocks:
    blocks = Blocks([], [])
    elastic.block_us(rows, plan.elastic_pairs)  # warms up
    block_us(stock, rows, plan.stock_pairs)
    for _ in range(plan.blocks):
        blocks.elastic_us.append(elastic.block_us(rows, plan.elastic_pairs))
        blocks.stock_us.append(block_us(stock, rows, plan.stock_pairs))
    return blocks


def _scattered_us(plan: Plan) -> float:
    with ExitStack() as stack:
        elastic = make_elastic(stack, 1 << 20)
        scatter_half(elastic.allocator)
        return min(elastic.block_us(LARGE_K, plan.elastic_pairs // 10) for _ in range(plan.blocks))


def _syscalls_per_pair(pairs: int) -> float:
    """Over all k. RuntimeError where the tracer itself miscounts."""
    child = ["-m", "bench.alloc.traced"]
    seen = count_syscalls([*child, "known", str(KNOWN_CALLS)], TRACE_TIMEOUT_S)
    if seen != KNOWN_CALLS:
        raise RuntimeError(f"the tracer counted {seen} system calls where {KNOWN_CALLS} were made")
    sizes = (*SMALL_K, LARGE_K)
    calls = [count_syscalls([*child, "pairs", str(k), str(pairs)], TRACE_TIMEOUT_S) for k in sizes]
    return round(sum(calls) / (pairs * len(sizes)), 6)


if __name__ == "__main__":
    raise SystemExit(main())
