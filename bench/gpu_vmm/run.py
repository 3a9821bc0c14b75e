"""What virtual memory costs on a CUDA device, and how it behaves where the documentation is silent.

Runs unattended in less than eight minutes. Every probe (see probe.py) has its own process and time limit.
A probe that this machine cannot answer counts as skipped. Without a CUDA device the status is 2.
The driver library is the system's, or what KVCACHED_LIBCUDA names. Times hold about a microsecond of Python
per call (`call_us`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(ROOT))

# ruff: noqa: E402 - the line above has to come first
from bench.common.report import Measured, run_bench
from bench.gpu_vmm.device import CallFailed, Device

PROBES = (
    *("latency", "rules", "kernels_in_flight", "unmap_in_use", "out_of_memory"),
    *("kill9", "export", "pool", "dlpack"),
)
PROBE_LIMIT_S = 50  # nine of them stay below eight minutes


def measure(quick: bool) -> Measured:
    """Ask every probe."""
    library = os.environ.get("KVCACHED_LIBCUDA") or "libcuda.so.1"
    identity = _identify(library)
    figures: dict[str, float] = {}
    made = 0
    for probe in PROBES:
        answer = _ask(probe, library, 16 if quick else 256)
        if isinstance(answer, str):
            print(f"{probe}: skipped, {answer}", file=sys.stderr, flush=True)
            continue
        made += 1
        figures |= answer
    return Measured(figures, planned=len(PROBES), made=made, hardware=identity)


def _identify(library: str) -> str:
    """Device and driver, found out in a process of its own, as a probe would."""
    try:
        device = Device(library)
    except (OSError, CallFailed, RuntimeError) as error:
        print(f"no CUDA device to measure ({library}): {error}", file=sys.stderr)
        raise SystemExit(2) from error
    version = device.driver_version()
    return f"{device.name()}, driver for CUDA {version // 1000}.{version % 1000 // 10}"


def _ask(probe: str, library: str, rounds: int) -> dict[str, float] | str:
    """A probe's figures, or why there are none."""
    command = [sys.executable, str(Path(__file__).with_name("probe.py")), probe, library, str(rounds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {PROBE_LIMIT_S} s"
    if done.returncode != 0:
        return f"ended with {done.returncode}: {done.stderr.strip()[-300:]}"
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return str(answer["skip"]) if "skip" in answer else answer


if __name__ == "__main__":
    raise SystemExit(run_bench("gpu_vmm", __doc__ or "", measure))
