"""`prism simulate`, from files to table, JSON and event log."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from prism.cli.simulate import simulate
from prism.sim.eventlog import replay
from prism.traces import write_trace
from prism.traces.generator import Lengths, SyntheticModel, SyntheticTrace, generate

app = typer.Typer()
app.command()(simulate)
runner = CliRunner()

MODEL = {
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 256,
    "max_position_embeddings": 1024,
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "prism.yaml").write_text(
        "devices: [{name: host0, kv_budget_bytes: 16MiB}]\n"
        "models:\n"
        "  - {name: a, path: a, engine: {max_total_tokens: 2048}}\n"
        "  - {name: b, path: b, engine: {max_total_tokens: 2048}}\n"
    )
    models = tuple(SyntheticModel(n, Lengths(100, 0.5, 300), Lengths(20, 0.5, 50)) for n in ("a", "b"))
    write_trace(tmp_path / "t.csv", generate(SyntheticTrace(models, duration_s=30.0, requests_per_s=1.0)))
    return tmp_path


def test_table_json_and_a_log_that_replays(files: Path) -> None:
    out, log = files / "out.json", files / "events.jsonl"
    arguments = [
        str(files / "t.csv"),
        "-c",
        str(files / "prism.yaml"),
        "--json",
        str(out),
        "--event-log",
        str(log),
    ]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "rough defaults" in result.output
    figures = json.loads(out.read_text())
    assert figures["simulated"] is True
    assert figures["total"]["ok"] == figures["total"]["requests"] > 10
    assert 0 < figures["peak_bytes"]["host0"] <= 16 * 2**20
    assert replay(log).events > 50


def test_a_faster_trace_does_worse(files: Path) -> None:
    attainment = []
    for scale in ("1", "30"):
        out = files / f"{scale}.json"
        arguments = [
            str(files / "t.csv"),
            "-c",
            str(files / "prism.yaml"),
            "--json",
            str(out),
            "--rate-scale",
            scale,
        ]
        assert runner.invoke(app, arguments).exit_code == 0
        attainment.append(json.loads(out.read_text())["total"]["attainment_ttft"])
    assert attainment[0] > attainment[1]


def test_mistakes_are_named(files: Path) -> None:
    trace, config = str(files / "t.csv"), str(files / "prism.yaml")
    (files / "bad.yaml").write_text("default: {base: 1}\n")
    (files / "other.csv").write_text("arrival_s,model,prompt_tokens,output_tokens\n0,zebra,1,1\n")
    for arguments in (
        [trace, "-c", str(files / "none.yaml")],
        [str(files / "none.csv"), "-c", config],
        [str(files / "other.csv"), "-c", config],
        [trace, "-c", config, "--profile", str(files / "bad.yaml")],
        [trace, "-c", config, "--rate-scale", "0"],
    ):
        result = runner.invoke(app, arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert "Traceback" not in result.output
