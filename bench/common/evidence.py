"""The tables of docs/benchmarks.md from the reports in docs/evidence: `python -m bench.common.evidence`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.common.report import ROOT

EVIDENCE = ROOT / "docs" / "evidence"
PAGE = ROOT / "docs" / "benchmarks.md"
PEER_PAIR_US = {1: 41.7, 16: 42.5, 256: 74.0, 4096: 1262.0}
"""By k: what docs/benchmarks.md says about the peer's figures."""
_BEGIN, _END = "<!-- made by bench.common.evidence -->\n", "<!-- end -->\n"


def updated(page: str, folder: Path = EVIDENCE) -> str:
    """The page with its tables made anew. ValueError where it lacks the marks around them."""
    if page.count(_BEGIN) != 1 or page.count(_END) != 1:
        raise ValueError(f"the page needs one {_BEGIN.strip()} and one {_END.strip()}")
    reports = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    head, rest = page.split(_BEGIN)
    return head + _BEGIN + "\n".join(_tables(reports)) + "\n" + _END + rest.split(_END)[1]


def _tables(reports: list[dict[str, Any]]) -> Iterator[str]:
    yield "\n| k | the peer then, us per pair | ours, us per pair | peer over ours |\n|---|---|---|---|"
    ours = next(report["figures"] for report in reports if report["bench"] == "alloc")
    for k, peer_us in PEER_PAIR_US.items():
        our_us = ours[f"pair_us_k{k}"]
        yield f"| {k} | {peer_us:g} | {our_us:g} | {peer_us / our_us:.0f} |"
    yield "\n## Latest evidence"
    for report in reports:
        yield f"\n### {report['bench']}\n\n{report['hardware']}; commit {report['commit']},"
        yield f"{report['seconds']:g} s, {report['skipped']} measurements skipped.\n"
        yield "| figure | value |\n|---|---|"
        yield from (f"| `{name}` | {value:.12g} |" for name, value in report["figures"].items())


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
