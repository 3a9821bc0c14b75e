"""Every driver call fails once: what does it leave behind?

The lives of a pool and of a range (reserve, map, grow, shrink, export, clear, close) run on the CUDA stand-in
once for every driver call in them and for each of two codes, out of memory and another, with that call
failing. A step that fails must have changed nothing and must work when tried again; no memory, mapping,
address or credit may stay behind; no rule of the driver may be broken; at no instant may the device hold more
than the ledger counts. `injected` is what the stand-in made fail, `driver_calls` what a life without failures
makes, the release of the context at its end included (a driver that refuses that one keeps the context), and
`cuInit`, whose failure has to make CUDA unavailable in that process.
The counts are exact, the same on every machine, and the same with --quick. The lives:
csrc/tests/fault_drill.cpp.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(ROOT))

# ruff: noqa: E402 - the line above has to come first
from bench.common.native import run_program
from bench.common.report import Measured, run_bench


def measure() -> Measured:
    """Run the drill."""
    figures = run_program("fault_drill", timeout_s=300)
    return Measured(figures, planned=int(figures["driver_calls"]), made=int(figures["injected"]))


if __name__ == "__main__":
    raise SystemExit(run_bench("faults", __doc__ or "", lambda _quick: measure()))
