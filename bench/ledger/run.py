"""What the ledger costs and what kill -9 leaves of it: `python bench/ledger/run.py`.

Three parts, each by `csrc/tests/ledger_worker.cpp`, which keeps books of its own beside the ledger's:

`pair_ns_1`: wall time of a reservation and its release by one process alone, best of several blocks.

`pair_cpu_ns_8`: eight processes at once, each claiming 1 to 4 units and releasing them in a loop; the budget
is three eighths of the most they would hold. CPU time of all over pairs of all, so the cost of refused claims
and of the second books is part of it. Best of several runs. In as many runs more, whose CPU time is not
looked at, racers keep some grants while others take four turns: then the budget is mostly held, and a grant
too many stays long enough to be seen. `refusals` and `overgrants` are sums over both kinds of run. An
overgrant is an instant at which the second books hold more than the budget, looked for inside every claim, at
every such turn, and by a ninth process all along (`audits` looks). With the claim's second look left out
(`is_granted = true` in `LedgerClient::try_claim`) every single run of the second kind counted some: 10 to 619
in 14 runs of 0.5 and of 3 s, three of them with all racers on one core.

`kill9_*`: four workers claim and release at random; in every round one to four of them are killed at a
random instant and replaced, the others go on. After each round the auditing process stops the survivors,
compares the ledger with their books and claims all that is left. `kills_mid_operation` counts victims whose
own shared page says, after their death, that they were inside a claim or a release.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(ROOT))

# ruff: noqa: E402 - the line above has to come first
from bench.common.native import build
from bench.common.report import Measured, run_bench

WORKERS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure."""

    blocks: int
    pairs_per_block: int
    races: int
    race_ms: int
    kill_rounds: int


FULL = Plan(blocks=10, pairs_per_block=2_000_000, races=5, race_ms=3000, kill_rounds=1500)
QUICK = Plan(blocks=3, pairs_per_block=200_000, races=2, race_ms=500, kill_rounds=60)


def main() -> int:
    """Run the bench."""
    return run_bench("ledger", __doc__ or "", lambda quick: measure(QUICK if quick else FULL))


def measure(plan: Plan) -> Measured:
    """Run the three parts one after the other."""
    program = build("ledger_worker")
    pair = _run(program, "pair", plan.blocks, plan.pairs_per_block)
    timed = [_run(program, "race", WORKERS, plan.race_ms) for _ in range(plan.races)]
    races = timed + [_run(program, "hold", WORKERS, plan.race_ms) for _ in range(plan.races)]
    kill = _run(program, "kill", plan.kill_rounds)
    if any(race["failed"] or race["left_bytes"] for race in races):
        raise RuntimeError(f"a racer failed or left credit behind: {races}")
    return Measured(
        {
            "pair_ns_1": pair["pair_ns"],
            "pair_cpu_ns_8": min(race["pair_cpu_ns"] for race in timed),
            "pair_cpu_ns_8_worst": max(race["pair_cpu_ns"] for race in timed),
            "pairs": sum(race["pairs"] for race in races),
            "refusals": sum(race["refusals"] for race in races),
            "overgrants": sum(race["overgrants"] for race in races),
            "audits": sum(race["audits"] for race in races),
            "kill9_rounds": kill["rounds"],
            "kills": kill["kills"],
            "kills_mid_operation": kill["mid_operation"],
            "kill9_leaked_bytes": kill["leaked_bytes"],
            "kill9_wrong_sums": kill["wrong_sums"],
        },
        planned=1 + 2 * plan.races + plan.kill_rounds,
        made=1 + len(races) + int(kill["rounds"]),
    )


def _run(program: Path, *arguments: object) -> dict[str, float]:
    done = subprocess.run(
        [str(program), *map(str, arguments)], capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{program.name} {arguments} ended with {done.returncode}: {done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
