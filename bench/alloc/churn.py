"""A load that rises and drops, and the pages it leaves mapped: what page-choice policies are compared by.

The trace (`churn.csv`, one request per line: the step it arrives at, its prompt and its output tokens) is
made by `make_trace` from a fixed seed: `python bench/alloc/churn.py` writes it anew. Ten times as many
requests run in busy phases as in quiet ones, with lengths as long-tailed as those of chats.
"""

import csv
import itertools
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from kvcached._core import Backend, Geometry, KvPool

Policy = Literal["best_fit", "most_filled"]
TRACE = Path(__file__).with_name("churn.csv")
PHASE_STEPS = 1500
PHASES = 4
"""Busy and quiet by turns, busy first."""
_SEED = 5
_BUSY_PER_STEP, _QUIET_PER_STEP = 0.9, 0.09


@dataclass(frozen=True, slots=True)
class Request:
    """One line of the trace."""

    arrives_step: int
    prompt_tokens: int
    output_tokens: int


def make_trace() -> Iterator[Request]:
    """The same requests on every machine: only `random()` is used, whose sequence Python guarantees."""
    source = random.Random(_SEED)
    for step in range(PHASE_STEPS * PHASES):
        busy = step // PHASE_STEPS % 2 == 0
        if source.random() < (_BUSY_PER_STEP if busy else _QUIET_PER_STEP):
            prompt_tokens = min(8000, max(8, round(math.exp(5.8 + _normal(source)))))
            output_tokens = min(2000, max(4, round(math.exp(5.0 + 0.9 * _normal(source)))))
            yield Request(step, prompt_tokens, output_tokens)


def _normal(source: random.Random) -> float:
    """Nearly normal: the sum of twelve uniform draws."""
    return sum(source.random() for _ in range(12)) - 6.0


def read_trace(path: Path = TRACE) -> list[Request]:
    """The committed trace."""
    with path.open(newline="") as lines:
        return [Request(*map(int, line)) for line in itertools.islice(csv.reader(lines), 1, None)]


def write_trace(requests: Iterable[Request], path: Path = TRACE) -> None:
    """Write a trace as `read_trace` reads it."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("arrives_step", "prompt_tokens", "output_tokens"))
        writer.writerows((r.arrives_step, r.prompt_tokens, r.output_tokens) for r in requests)


def pages_over_needed(requests: list[Request], rows_per_page: int, policy: Policy, block_rows: int) -> float:
    """Pages mapped over pages that the rows in use would fill, summed over the later half of quiet phases.

    Steps are an engine's: prompts are taken whole, then running requests take the rows for their next token,
    finished requests free theirs, and empty pages are given back. With `block_rows` above 1 a request takes
    so many rows at a time, by a call of its own; with 1 all requests take a row each by one common call.
    """
    pool = _pool(rows_per_page, sum(r.prompt_tokens + r.output_tokens + block_rows for r in requests), policy)
    running: list[_Running] = []
    waiting = iter(requests)
    following = next(waiting, None)
    mapped_pages = needed_pages = 0
    for step in range(PHASE_STEPS * PHASES):
        while following is not None and following.arrives_step == step:
            running.append(_Running(following.output_tokens, _take(pool, following.prompt_tokens).tolist()))
            following = next(waiting, None)
        _decode(pool, running, block_rows)
        for request in running:
            if request.left_tokens == 0:
                pool.free(np.array(request.rows))
        running = [request for request in running if request.left_tokens > 0]
        pool.trim()
        if step // PHASE_STEPS % 2 == 1 and step % PHASE_STEPS >= PHASE_STEPS // 2:
            mapped_pages += pool.mapped_bytes // pool.geometry.page_set_bytes
            needed_pages += -(-(pool.rows_used + pool.geometry.reserved_rows) // rows_per_page)
    pool.check_invariants()
    pool.close()
    return mapped_pages / needed_pages


@dataclass(slots=True)
class _Running:
    left_tokens: int
    rows: list[int]
    spare_rows: int = 0
    """Taken in advance: the rest of a block."""


def _decode(pool: KvPool, running: list[_Running], block_rows: int) -> None:
    lacking = [request for request in running if request.spare_rows == 0]
    if block_rows == 1:
        for request, row in zip(lacking, _take(pool, len(lacking)).tolist(), strict=True):
            request.rows.append(row)
    else:
        for request in lacking:
            request.rows += _take(pool, block_rows).tolist()
    for request in lacking:
        request.spare_rows = block_rows
    for request in running:
        request.spare_rows -= 1
        request.left_tokens -= 1


def _pool(rows_per_page: int, rows: int, policy: Policy) -> KvPool:
    """A pool with the smallest pages there are, so that the size of a page in rows is the only difference."""
    backend = Backend.host()
    page_bytes = backend.capabilities.granularity_bytes
    geometry = Geometry(
        rows=rows,
        row_bytes=[page_bytes // rows_per_page],
        granularity_bytes=page_bytes,
        page_bytes=page_bytes,
    )
    return KvPool(backend, geometry, page_policy=policy)


def _take(pool: KvPool, rows: int) -> np.ndarray:
    pool.grow(rows)
    ids = pool.alloc(rows)
    if ids is None:
        raise RuntimeError(f"a pool of {pool.rows_total} rows could not hold the trace")
    return ids


if __name__ == "__main__":
    write_trace(make_trace())
