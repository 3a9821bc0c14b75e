"""What kvcached costs an engine whose steps are bound by Python: `python bench/engine_overhead/run.py`.

Two live SGLang engines on the CPU serve a random model of two narrow layers, one as it is and one with
kvcached, so nearly all of a step is the scheduler's Python. They are loaded in turn, never together: a turn
is one message with 16 prompts and a fixed number of new tokens each, from an empty cache, so pages are mapped
during every turn. A pair is one turn of each, in alternating order; its ratio is throughput with kvcached
over throughput without. Pairs cancel what changes slowly on the machine. Both schedulers are pinned to one
core and all else of the engines to the others: left to the kernel, the two settle on different cores, and
whatever else runs there slows one of them throughout.

Two equal engines still differ by several percent for as long as they live, by where their memory came to
lie. Both are therefore started anew for every round of pairs, with the same hash seed, and intervals treat a
round as what it is, one draw.

Figures: `throughput_ratio_median` over the pairs; `throughput_ratio_ci_low`, the lower end of its 95 %
bootstrap interval over rounds and pairs; `hook_us_per_step`, a difference and not a timer around the hooks:
the median over the pairs of the CPU time that a scheduler process spends on a turn with kvcached less that
without, by the kernel's account, over the steps of a turn, in microseconds. It holds everything kvcached
changes, mapping pages included; where its interval, `hook_us_per_step_ci_low` to `_ci_high`, holds zero, the
hooks cost less than this machine can tell. `stock_step_us` is the stock engine's CPU time per step, for
scale. `pages_mapped` is by the kernel's account too: resident memory after each turn against before it.
"""

import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(ROOT))

# ruff: noqa: E402 - the line above has to come first
from bench.common.bootstrap import bootstrap_median_interval
from bench.common.report import Measured, run_bench
from kvcached.stats import read_ledger
from tests.correctness.engine import Elastic, Engine, EngineSpec
from tools.families import Shape, make_random_model

MODEL = ROOT / "out" / "bench" / "tiny-llama"
BUDGET_BYTES = 64 << 20
REQUESTS = 16
PROMPT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure."""

    rounds: int
    pairs_per_round: int
    new_tokens: int
    """Per request and turn. A turn is one prefill step and then a decode step for every further token."""


FULL = Plan(rounds=8, pairs_per_round=4, new_tokens=256)
QUICK = Plan(rounds=1, pairs_per_round=3, new_tokens=64)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn took."""

    wall_s: float
    scheduler_cpu_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """One turn of each engine."""

    stock: Turn
    elastic: Turn
    pages_mapped: int


def main() -> int:
    """Run the bench."""
    return run_bench("engine_overhead", __doc__ or "", lambda quick: measure(QUICK if quick else FULL))


def measure(plan: Plan) -> Measured:
    """Run all rounds and sum up."""
    make_random_model(MODEL, "llama", Shape())
    rounds = [_round(plan, number) for number in range(plan.rounds)]
    made = sum(len(pairs) for pairs in rounds)
    return Measured(_figures(rounds, plan), planned=plan.rounds * plan.pairs_per_round, made=made)


def _round(plan: Plan, number: int) -> list[Pair]:
    """Start both engines and load them in turn."""
    with ExitStack() as stack:
        ledger = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "host0.ledger"
        # Not strict: the setting that users run.
        environment = {"KVCACHED_HOST_STRICT": "0", "PYTHONHASHSEED": str(number)}
        plain = EngineSpec(
            MODEL, max_total_tokens=16384, max_running_requests=REQUESTS, extra_environment=environment
        )
        stock = stack.enter_context(Engine(plain))
        elastic = stack.enter_context(Engine(replace(plain, elastic=Elastic(ledger, BUDGET_BYTES, "bench"))))
        stock.wait_ready()
        elastic.wait_ready()
        _pin(stock)
        _pin(elastic)
        first = number * (plan.pairs_per_round + 1)
        _pair(stock, elastic, ledger, plan, first)  # warms both up
        return [_pair(stock, elastic, ledger, plan, first + 1 + pair) for pair in range(plan.pairs_per_round)]


def _figures(rounds: list[list[Pair]], plan: Plan) -> dict[str, float]:
    tokens, steps = REQUESTS * plan.new_tokens, plan.new_tokens
    pairs = [pair for one in rounds for pair in one]
    ratios = [[pair.stock.wall_s / pair.elastic.wall_s for pair in one] for one in rounds]
    hooks_us = [
        [(pair.elastic.scheduler_cpu_s - pair.stock.scheduler_cpu_s) / steps * 1e6 for pair in one]
        for one in rounds
    ]
    hook_low_us, hook_high_us = bootstrap_median_interval(hooks_us)
    stock_cpu_s = statistics.median(pair.stock.scheduler_cpu_s for pair in pairs)
    stock_s = statistics.median(pair.stock.wall_s for pair in pairs)
    elastic_s = statistics.median(pair.elastic.wall_s for pair in pairs)
    return {
        "throughput_ratio_median": round(statistics.median(chain.from_iterable(ratios)), 4),
        "throughput_ratio_ci_low": round(bootstrap_median_interval(ratios)[0], 4),
        "hook_us_per_step": round(statistics.median(chain.from_iterable(hooks_us)), 1),
        "hook_us_per_step_ci_low": round(hook_low_us, 1),
        "hook_us_per_step_ci_high": round(hook_high_us, 1),
        "stock_step_us": round(stock_cpu_s / steps * 1e6, 1),
        "stock_tokens_per_s": round(tokens / stock_s, 1),
        "kvcached_tokens_per_s": round(tokens / elastic_s, 1),
        "pages_mapped": sum(pair.pages_mapped for pair in pairs),
        "engine_starts": len(rounds),
        "pairs": len(pairs),
    }


def _pair(stock: Engine, elastic: Engine, ledger: Path, plan: Plan, number: int) -> Pair:
    """One turn of each with the same prompts, stock first in even pairs."""
    for engine in (stock, elastic):
        engine.flush_cache()
    before_bytes = _mapped_bytes(ledger)
    order = (stock, elastic) if number % 2 == 0 else (elastic, stock)
    turns = {id(engine): _turn(engine, plan, number) for engine in order}
    # What finished requests used stays in the prefix cache, hence mapped; before, only the padding page was.
    mapped_bytes = _mapped_bytes(ledger) - before_bytes
    return Pair(turns[id(stock)], turns[id(elastic)], mapped_bytes // before_bytes)


def _turn(engine: Engine, plan: Plan, number: int) -> Turn:
    """One message of `REQUESTS` prompts that share no prefix."""
    prompts = [
        [7 + (number * 131 + request * 17 + position * 29) % 500 for position in range(PROMPT_TOKENS)]
        for request in range(REQUESTS)
    ]
    scheduler = engine.scheduler_pid()
    cpu_before_s, started_s = _cpu_s(scheduler), time.monotonic()
    answers = engine.generate_together(prompts, [plan.new_tokens] * REQUESTS, ignore_eos=True)
    turn = Turn(time.monotonic() - started_s, _cpu_s(scheduler) - cpu_before_s)
    short = [answer for answer in answers if len(answer.output_ids) != plan.new_tokens]
    if short:
        raise RuntimeError(f"{len(short)} of {REQUESTS} answers were cut short: the turns are not comparable")
    return turn


def _pin(engine: Engine) -> None:
    """The scheduler on the last core this process may use, the engine's other processes on the rest."""
    cores = sorted(os.sched_getaffinity(0))
    scheduler = engine.scheduler_pid()
    for pid in engine.pids():
        allowed = cores[-1:] if pid == scheduler else cores[:-1] or cores
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), allowed)


def _cpu_s(pid: int) -> float:
    """CPU time of all living threads of a process so far."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _mapped_bytes(ledger: Path) -> int:
    """Resident bytes beneath the engine's KV range, as the kernel accounts for them."""
    (client,) = read_ledger(str(ledger)).clients
    if not client.mapped_bytes:
        raise RuntimeError(f"the kernel shows no memory of client {client.name} (pid {client.pid})")
    return client.mapped_bytes


if __name__ == "__main__":
    raise SystemExit(main())
