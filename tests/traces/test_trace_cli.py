"""`prism trace`."""

import json
from pathlib import Path

from typer.testing import CliRunner

from prism.cli.trace import trace_app

runner = CliRunner()


def test_synth_then_stats(tmp_path: Path) -> None:
    out = tmp_path / "t.csv.gz"
    made = runner.invoke(
        trace_app, ["synth", str(out), "--models", "a, b", "--bursts", "alternating", "--rate", "9"]
    )
    assert made.exit_code == 0, made.output
    shown = runner.invoke(trace_app, ["stats", str(out), "--json"])
    assert shown.exit_code == 0
    assert set(json.loads(shown.output)["models"]) == {"a", "b"}
    assert runner.invoke(trace_app, ["stats", str(out)]).exit_code == 0


def test_mistakes_are_named(tmp_path: Path) -> None:
    missing = runner.invoke(trace_app, ["stats", str(tmp_path / "none.csv")])
    assert missing.exit_code == 2
    for arguments in (["--bursts", "sometimes"], ["--rate", "0"]):
        wrong = runner.invoke(trace_app, ["synth", str(tmp_path / "t.csv"), "--models", "a", *arguments])
        assert wrong.exit_code == 2
        assert not (tmp_path / "t.csv").exists()
