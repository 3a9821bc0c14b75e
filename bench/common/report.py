"""What every bench shares: its options, where it ran, and the one JSON object it ends with.

`python bench/NAME/run.py [--quick] [--json OUT]` prints as its last line
`{"bench", "commit", "hardware", "seconds", "skipped", "figures"}`.

A bench fails where what it measured was not the work: credit left, a pair not counted, memory not resident.
Whether a figure is good enough it does not judge, as that depends on the machine: whoever reads the figures
compares them (docs/benchmarks.md).
"""

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Report:
    """A finished bench."""

    bench: str
    commit: str
    hardware: str
    seconds: float
    skipped: int
    """Planned measurements that are missing from the figures; 0 in every committed report."""
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a bench hands over: its figures by name, and how many measurements it planned and made."""

    figures: Mapping[str, float]
    planned: int
    made: int
    hardware: str = ""
    """What was measured beside this machine: a device and its driver, say."""

    @property
    def skipped(self) -> int:
        """Planned measurements that were not made. ValueError where more were made than planned."""
        if not 0 <= self.made <= self.planned:
            raise ValueError(f"{self.made} measurements made of {self.planned} planned: the bench miscounts")
        return self.planned - self.made


def run_bench(name: str, what: str, measure: Callable[[bool], Measured]) -> int:
    """Parse the options, measure, write the report and print it as the last line. Returns the exit status.

    Args:
        name: the folder under bench/.
        what: shown by --help.
        measure: called with `quick`; returns the figures, numbers only, and what they rest on.
    """
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test that ends within a minute")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the report to this file")
    options = parser.parse_args()
    started_s = time.monotonic()
    measured = measure(options.quick)
    seconds = round(time.monotonic() - started_s, 1)
    where = ", ".join(filter(None, (hardware(), measured.hardware)))
    report = asdict(Report(name, commit(), where, seconds, measured.skipped, dict(measured.figures)))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report), flush=True)
    return 0


def commit() -> str:
    """The commit that was measured, `-dirty` where files differ from it; `unknown` outside a repository."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return "unknown"
    return f"{head}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else head


def hardware() -> str:
    """CPU model, the cores this process may use, and memory."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    cores = len(os.sched_getaffinity(0))
    return f"{model or platform.machine()}, {cores} cores, {memory_gib:.0f} GiB, Linux {platform.release()}"


def _git(*arguments: str) -> str:
    """What git says, stripped; empty where there is no git or no repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
