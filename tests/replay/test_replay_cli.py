"""`prism replay` as a user runs it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from replay_server import Behaviour, serving

TRACE = "arrival_s,model,prompt_tokens,output_tokens\n0.0,a,5,3\n0.1,b,5,3\n"


def replay_command(
    tmp_path: Path, behaviour: Behaviour, *options: str, trace: str = TRACE
) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `prism replay` against a server."""
    (tmp_path / "trace.csv").write_text(trace)

    async def inner() -> tuple[int, str, str]:
        async with serving(behaviour) as (_, url):
            process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-m",
                    "prism.cli.main",
                    "replay",
                    str(tmp_path / "trace.csv"),
                    "--url",
                    url,
                    *options,
                ),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={"COLUMNS": "200", "PATH": "/usr/bin:/bin"},
            )
            out, err = await asyncio.wait_for(process.communicate(), 60)
            return process.returncode or 0, out.decode(), err.decode()

    return asyncio.run(inner())


def test_all_served(tmp_path: Path) -> None:
    figures, outcomes = tmp_path / "figures.json", tmp_path / "outcomes.jsonl"
    status, out, err = replay_command(
        tmp_path, Behaviour(), "--json", str(figures), "--outcomes", str(outcomes)
    )
    assert status == 0, err
    report = json.loads(figures.read_text())
    assert report["total"]["ok"] == 2
    assert set(report["models"]) == {"a", "b"}
    assert len(outcomes.read_text().splitlines()) == 2
    assert "TTFT" in out


def test_a_failed_request_fails_the_command(tmp_path: Path) -> None:
    status, out, _ = replay_command(tmp_path, Behaviour(status=500))
    assert status == 1
    assert "HTTP 500" in out


def test_rows_after_the_end_are_told(tmp_path: Path) -> None:
    late = TRACE + "900.0,a,5,3\n"
    status, out, err = replay_command(tmp_path, Behaviour(), "--max-seconds", "20", trace=late)
    assert status == 0, err
    assert "1 of 3 rows" in out


@pytest.mark.parametrize("trace", ["", "arrival_s,model\n", TRACE + "x,a,5,3\n"])
def test_a_bad_trace_is_a_usage_error(tmp_path: Path, trace: str) -> None:
    status, _, err = replay_command(tmp_path, Behaviour(), trace=trace)
    assert status == 2
    assert "trace.csv" in err
    assert "Traceback" not in err


def test_an_impossible_scale_is_a_usage_error(tmp_path: Path) -> None:
    status, _, err = replay_command(tmp_path, Behaviour(), "--time-scale", "0")
    assert status == 2
    assert "time_scale is 0" in err
