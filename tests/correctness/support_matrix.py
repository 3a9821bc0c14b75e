"""What works with which SGLang: found out by running it, and written down: `make support-matrix`.

Each row starts stock SGLang and SGLang with kvcached on the same random model and sends both the same
prompts, alone and all at once. "same tokens" says that every answer was equal, one at a time, and that
flushing left the padding page alone. A row that kvcached refuses says so with the reason from the log.
"""

import argparse
import platform
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sglang.version import __version__ as sglang_version

from kvcached.stats import read_ledger
from tests.correctness.compare import differences
from tests.correctness.conftest import model_folder
from tests.correctness.engine import Elastic, Engine, EngineDiedError, EngineSpec
from tests.correctness.prompts import CHUNK_TOKENS, prompts_for
from tests.correctness.suite import SuiteRun, run_suite

BUDGET_BYTES = 256 << 20
SETTLE_S = 10.0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    family: str
    attention: str
    page_size: int = 1
    mode: str = "default"
    arguments: tuple[str, ...] = ()
    overlap_schedule: bool = False
    dtype: str | None = None

    def spec(self) -> EngineSpec:
        """The stock engine."""
        return EngineSpec(
            model_folder(f"tiny-{self.family}"),
            chunked_prefill_size=CHUNK_TOKENS,
            page_size=self.page_size,
            overlap_schedule=self.overlap_schedule,
            extra_arguments=self.arguments,
            dtype=self.dtype,
        )


MODES = (
    ("radix cache off", ("--disable-radix-cache",), False),
    ("overlap scheduling", (), True),
    ("mixed chunks", ("--enable-mixed-chunk",), False),
    ("priority scheduling", ("--enable-priority-scheduling",), False),
)
FAMILIES = (("llama", "GQA"), ("qwen3_moe", "GQA, experts"), ("deepseek_v2", "MLA"))
ROWS = (
    *(Row(family, attention, page) for family, attention in FAMILIES for page in (1, 16)),
    Row("llama", "GQA", dtype="float32", mode="float32"),
    *(
        Row(family, attention, page, mode, arguments, overlap)
        for family, attention, page in (("llama", "GQA", 1), ("deepseek_v2", "MLA", 16))
        for mode, arguments, overlap in MODES
    ),
    Row("mellum", "GQA, sliding window"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all rows and write the page; 1 where an answer differed or memory stayed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args(arguments).out
    found = []
    for row in ROWS:
        started_s = time.monotonic()
        verdict = judge(row)
        found.append((row, verdict))
        print(f"{row.family} {row.page_size} {row.mode}: {verdict} ({time.monotonic() - started_s:.0f} s)")
    out.write_text(page(found))
    return 0 if all(verdict.startswith(("same tokens", "refused")) for _, verdict in found) else 1


def judge(row: Row) -> str:
    """What comes of one row, in words."""
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        ledger = Path(folder) / "host0.ledger"
        stock = row.spec()
        elastic = replace(stock, elastic=Elastic(ledger, BUDGET_BYTES, row.family, floor_bytes=0))
        with Engine(stock) as theirs, Engine(elastic) as ours:
            try:
                ours.wait_ready()
            except EngineDiedError:
                return f"refused: {reason_in(ours.log())}"
            theirs.wait_ready()
            at_start_bytes = settled_bytes(ledger)
            prompts = prompts_for(stock.model)
            runs: list[SuiteRun] = [run_suite(engine, prompts, len(prompts)) for engine in (theirs, ours)]
            ours.flush_cache()
            left_bytes = settled_bytes(ledger)
    alone = differences(runs[0].alone, runs[1].alone)
    if alone:
        return f"DIFFERS in {len(alone)} of {len(prompts)} answers"
    if left_bytes != at_start_bytes:
        return f"KEEPS {left_bytes - at_start_bytes} bytes after a flush"
    together = differences(runs[0].together, runs[1].together)
    return "same tokens" + (f", {len(together)} of {len(prompts)} differ in a batch" if together else "")


def reason_in(log: str) -> str:
    """Why the plugin refused to start. RuntimeError where the engine died of something else."""
    reason = re.search(r"kvcached (?:cannot|does not)[^\n]*?(?=\. Remedy|\n)", log)
    if reason is None:
        raise RuntimeError(f"the engine died, and not because kvcached refused:\n{log[-6000:]}")
    return reason[0]


def settled_bytes(ledger: Path) -> int:
    """What the engine holds once it is idle and has trimmed."""
    deadline_s = time.monotonic() + SETTLE_S
    before, after = -1, -2
    while before != after and time.monotonic() < deadline_s:
        before = read_ledger(str(ledger)).used_bytes
        time.sleep(1.0)
        after = read_ledger(str(ledger)).used_bytes
    return after


def page(found: Sequence[tuple[Row, str]]) -> str:
    """The table as Markdown."""
    versions = f"SGLang {sglang_version}, {platform.machine()}"
    lines = [
        "# What works with SGLang",
        "",
        f"Written by `make support-matrix`, never by hand: {versions}, CPU engines (attention backend",
        "torch_native), random models of each family, twenty prompts against stock SGLang.",
        "",
        "| family | attention | page size | mode | result |",
        "|---|---|---|---|---|",
    ]
    for row, verdict in found:
        lines.append(f"| {row.family} | {row.attention} | {row.page_size} | {row.mode} | {verdict} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
