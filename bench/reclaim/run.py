"""How long a more important process waits for memory that another one caches: `python bench/reclaim/run.py`.

A, a plain process of low priority, fills the budget with KV pages that it keeps as cache, and serves the
ledger's asking by its own callback on its own thread (`holder.py`). B, this process, of higher priority, is
refused, says what it wants, sleeps on the ledger and claims again when that changes; then it maps the pages.
The clock runs from the refusal to the pages being mapped. Each round wants another share of the budget, up to
all but A's floor.

Figures: `grant_ms_p50`, `_p99`, `_max` over all rounds; `floor_violations`: rounds in which A was left with
less than its floor, or B was granted all of the budget, which it asks for too in every fifth round.

Then the limit of another plain process is lowered to what its rows in use hold, while it claims and releases
without a pause and keeps a warm reserve (`limited.py`). From the moment before the limit is set:
`limit_stop_ms` runs to its last granted claim, `limit_warm_return_ms` until the reserve is back in the
budget; both are the 99th percentile, with the largest beside it. Lifting the limit lets it fill up again, or
the bench fails.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(ROOT))

# ruff: noqa: E402 - the line above has to come first
from bench.common.report import Measured, run_bench
from bench.reclaim.holder import GEOMETRY, PAGE_SET_BYTES
from kvcached._core import Backend, KvPool, Ledger, LedgerClient

BUDGET_PAGES = 64
FLOOR_PAGES = 8
GIVE_UP_S = 10.0
"""A want that is not met by then fails the bench."""

OVERREACH_S = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure."""

    rounds: int
    limits: int


FULL = Plan(rounds=1000, limits=500)
QUICK = Plan(rounds=60, limits=40)


def main() -> int:
    """Run the bench."""
    return run_bench("reclaim", __doc__ or "", lambda quick: measure(QUICK if quick else FULL))


def measure(plan: Plan) -> Measured:
    """The wants, then the limits."""
    wants, limits = _measure_wants(plan.rounds), _measure_limits(plan.limits)
    made = int(wants["grants"]) + int(limits["limits"])
    return Measured({**wants, **limits}, planned=plan.rounds + plan.limits, made=made)


def _measure_wants(rounds: int) -> dict[str, float]:
    """Let A fill up and B take, round by round."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o700)
        ledger = Ledger(f"{folder}/host0.ledger", BUDGET_PAGES * PAGE_SET_BYTES)
        arguments = [ledger.path, str(FLOOR_PAGES), str(BUDGET_PAGES)]
        holder = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("holder.py")), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with holder:
            try:
                return _rounds(ledger, holder, rounds)
            finally:
                holder.kill()


def _rounds(ledger: Ledger, holder: "subprocess.Popen[str]", rounds: int) -> dict[str, float]:
    if holder.stdin is None or holder.stdout is None or holder.stdout.readline() != "ready\n":
        raise RuntimeError("the holder did not start")
    client = ledger.register(name="wanting", priority=1)
    pool = KvPool(Backend.host(), GEOMETRY, client)
    waits_ms: list[float] = []
    violations = 0
    for number in range(rounds):
        holder.stdin.write("fill\n")
        holder.stdin.flush()
        if int(holder.stdout.readline()) != BUDGET_PAGES:
            raise RuntimeError("the holder could not fill the budget: what this process gave back is missing")
        pages = 1 + number * 7 % (BUDGET_PAGES - FLOOR_PAGES)
        waits_ms.append(_grow_ms(ledger, client, pool, pages))
        violations += _held_by_holder(ledger) < FLOOR_PAGES * PAGE_SET_BYTES
        if number % 5 == 0:
            violations += _overreaches(ledger, client, pool)
        pool.trim(0)
    return {
        "grant_ms_p50": round(statistics.median(waits_ms), 2),
        "grant_ms_p99": _p99(waits_ms),
        "grant_ms_max": round(max(waits_ms), 2),
        "floor_violations": violations,
        "grants": len(waits_ms),
    }


def _p99(values: list[float]) -> float:
    return round(sorted(values)[-(-len(values) * 99 // 100) - 1], 2)


def _measure_limits(rounds: int) -> dict[str, float]:
    """Lower and lift a limit, round by round."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o700)
        ledger = Ledger(f"{folder}/host0.ledger", 1 << 30)
        limited = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("limited.py")), ledger.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with limited:
            try:
                return _limit_rounds(ledger, limited, rounds)
            finally:
                limited.kill()


def _limit_rounds(ledger: Ledger, limited: "subprocess.Popen[str]", rounds: int) -> dict[str, float]:
    if limited.stdin is None or limited.stdout is None or limited.stdout.readline() != "ready\n":
        raise RuntimeError("the limited process did not start")
    (client,) = ledger.snapshot().clients
    stops_ms: list[float] = []
    returns_ms: list[float] = []
    for number in range(rounds):
        limited.stdin.write("warm\n")
        limited.stdin.flush()
        in_use_bytes = int(limited.stdout.readline())
        _await_used(ledger, above_bytes=in_use_bytes)
        limited.stdin.write("claim\n")
        limited.stdin.flush()
        limited.stdout.readline()
        time.sleep(number % 10 / 1e3)
        began_ns = time.monotonic_ns()
        ledger.set_limit(slot=client.slot, pid=client.pid, limit_bytes=in_use_bytes)
        _await_used(ledger, most_bytes=in_use_bytes)
        returns_ms.append((time.monotonic_ns() - began_ns) / 1e6)
        stops_ms.append(max(0.0, (int(limited.stdout.readline()) - began_ns) / 1e6))
        ledger.set_limit(slot=client.slot, pid=client.pid, limit_bytes=None)
    return {
        "limit_stop_ms": _p99(stops_ms),
        "limit_stop_ms_max": round(max(stops_ms), 2),
        "limit_warm_return_ms": _p99(returns_ms),
        "limit_warm_return_ms_max": round(max(returns_ms), 2),
        "limits": len(returns_ms),
    }


def _await_used(ledger: Ledger, *, above_bytes: int = -1, most_bytes: int = 1 << 47) -> None:
    deadline_s = time.monotonic() + GIVE_UP_S
    while not above_bytes < ledger.snapshot().used_bytes <= most_bytes:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"waited {GIVE_UP_S} s in vain: {ledger.snapshot().clients}")


def _grow_ms(ledger: Ledger, client: LedgerClient, pool: KvPool, pages: int) -> float:
    """Refused, wanting, waiting, mapped: how long it took."""
    rows = pages * GEOMETRY.rows_per_page
    started_s = time.monotonic()
    while True:
        generation = client.generation
        if pool.grow(rows):
            taken_s = time.monotonic() - started_s
            client.set_want(0)
            return taken_s * 1e3
        client.set_want(pages * PAGE_SET_BYTES)
        if time.monotonic() - started_s > GIVE_UP_S:
            raise RuntimeError(f"{pages} pages were not granted within {GIVE_UP_S} s: {ledger.snapshot()}")
        ledger.wait(generation, 1.0)


def _overreaches(ledger: Ledger, client: LedgerClient, pool: KvPool) -> bool:
    """Whether a want for the whole budget got anything of the holder's floor."""
    client.set_want((BUDGET_PAGES - client.used_bytes // PAGE_SET_BYTES) * PAGE_SET_BYTES, OVERREACH_S)
    deadline_s = time.monotonic() + OVERREACH_S
    granted = False
    while time.monotonic() < deadline_s and not granted:
        granted = pool.grow(BUDGET_PAGES * GEOMETRY.rows_per_page)
        ledger.wait(client.generation, OVERREACH_S / 5)
    client.set_want(0)
    return granted or _held_by_holder(ledger) < FLOOR_PAGES * PAGE_SET_BYTES


def _held_by_holder(ledger: Ledger) -> int:
    return next(info.used_bytes for info in ledger.snapshot().clients if info.name == "holder")


if __name__ == "__main__":
    raise SystemExit(main())
