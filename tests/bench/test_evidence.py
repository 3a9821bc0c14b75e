"""The page about the benches shows the reports that lie beside it."""

import json
from pathlib import Path

import pytest

from bench.common.evidence import EVIDENCE, PAGE, updated


def test_the_page_shows_the_committed_evidence() -> None:
    page = PAGE.read_text()
    assert page == updated(page), "run: python -m bench.common.evidence"
    for path in EVIDENCE.glob("*.json"):
        figures = json.loads(path.read_text())["figures"]
        assert figures
        assert all(f"| `{name}` | " in page for name in figures)


def test_another_report_makes_another_page(tmp_path: Path) -> None:
    report = {"bench": "alloc", "commit": "c", "hardware": "h", "seconds": 1, "skipped": 0}
    figures = {f"pair_us_k{k}": 2.5 for k in (1, 16, 256, 4096)}
    (tmp_path / "alloc.json").write_text(json.dumps({**report, "figures": figures}))
    shown = updated(PAGE.read_text(), tmp_path)
    assert "| 256 | 74 | 2.5 | 30 |" in shown
    assert "### warm" not in shown
    with pytest.raises(ValueError, match="needs one"):
        updated("no marks")


def test_the_page_names_every_bench() -> None:
    benches = {path.parent.name for path in (PAGE.parents[1] / "bench").glob("*/run.py")}
    assert all(f"\n| `{name}` | " in PAGE.read_text() for name in benches)
