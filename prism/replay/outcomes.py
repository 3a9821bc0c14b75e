"""Outcomes as JSON lines: one object per request, in order of arrival."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from prism.report import RequestOutcome


def write_outcomes(path: str | Path, outcomes: Iterable[RequestOutcome]) -> None:
    """Write all outcomes to a `.jsonl` file."""
    lines = [
        json.dumps({**asdict(outcome), "ttft_s": outcome.ttft_s, "tpot_s": outcome.tpot_s})
        for outcome in outcomes
    ]
    Path(path).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
