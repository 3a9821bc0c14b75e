"""The demo: ``make demo``, or ``python -m demo.run --out out/demo``.

Starts `prism serve` with three models as real SGLang engines over one KV budget, replays a trace of
bursts, and ends with a table, `report.json` and `memory.png` in the output folder. Exit status 1 says
that a request failed, the budget was exceeded or memory did not move between the models.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo.facts import commit, hardware, versions
from demo.movement import MemorySeries, find_problems
from demo.picture import draw_memory
from demo.sampler import MemorySampler
from demo.service import Service, ServiceError, effective_config, serving
from prism.config import ConfigError, load_config
from prism.replay import ClientSettings, PromptMaker, ReplaySettings, replay, write_outcomes
from prism.replay import Progress as ReplayProgress
from prism.report import Report, RequestOutcome, Slo, make_report, report_table
from prism.traces import TraceRequest, read_trace

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20
REPLAY_MAX_S = 75.0
REPLAY_MARGIN_S = 1.0  # so that giving up at the end still keeps the replay within its 75 s
START_TIMEOUT_S = 240.0
SETTLE_S = 1.0
QUESTION = "What is the capital of France?"

console = Console()


@dataclass(slots=True)
class Run:
    """What one run of the demo found."""

    outcomes: list[RequestOutcome] = field(default_factory=list)
    series: MemorySeries = field(default_factory=lambda: MemorySeries((), {}))
    restarts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def main() -> int:
    """Run the demo; 0 when everything held, 1 when a claim failed, 2 when it could not run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "demo")
    parser.add_argument("--config", type=Path, default=ROOT / "demo" / "config.yaml")
    parser.add_argument("--trace", type=Path, default=ROOT / "demo" / "trace.csv")
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    try:
        config, document = effective_config(arguments.config, out, runtime_dir())
        trace = read_trace(arguments.trace)
        run = _run(config, document, trace, out)
    except (ServiceError, ConfigError, ValueError, OSError) as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 2
    return _conclude(run, config, len(trace), out)


def runtime_dir() -> Path:
    """Prism's folder while it runs: one per checkout, so that the run after a killed one cleans up.

    Engines put sockets beneath it, whose paths must be short: it cannot lie inside the repository.
    """
    checkout = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"prism-demo-{os.getuid()}-{checkout}"


def _run(config: Path, document: dict[str, Any], trace: list[TraceRequest], out: Path) -> Run:
    run = Run()
    names = [model["name"] for model in document["models"]]
    ledger = Path(document["runtime_dir"]) / f"{document['devices'][0]['name']}.ledger"
    clock = _Laps(run.seconds)
    with serving(config, document["server"]["port"], out / "logs" / "prism.log") as service:
        _wait_ready(service, names)
        for name in names:
            answer = service.chat(name, QUESTION, 12)
            console.print(f"  {name}: {QUESTION} [dim]{answer!r}[/]", highlight=False)
        clock.lap("engines_start_s")
        sampler = MemorySampler(ledger, names)
        sampler.start()
        run.outcomes = _replay(service.url, config, trace, sampler)
        time.sleep(SETTLE_S)
        run.series = sampler.stop()
        status = service.status() or {}
        run.restarts = {model["name"]: model["starts"] - 1 for model in status.get("models", [])}
        clock.lap("replay_s")
    clock.lap("stop_s")
    return run


class _Laps:
    """Wall seconds of the phases, one after the other."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._last_s = time.monotonic()

    def lap(self, name: str) -> None:
        now_s = time.monotonic()
        self._seconds[name] = round(now_s - self._last_s, 2)
        self._last_s = now_s


def _wait_ready(service: Service, names: list[str]) -> None:
    """Wait for the engines, showing what they are doing."""
    with console.status("starting three SGLang engines") as line:

        def show(phases: dict[str, str]) -> None:
            line.update(
                "starting engines: " + ", ".join(f"{name} {phases.get(name, '...')}" for name in names)
            )

        service.wait_ready(START_TIMEOUT_S, show)
    console.print(f"[bold]{len(names)} engines serve at {service.url}[/]", highlight=False)


def _replay(
    url: str, config: Path, trace: list[TraceRequest], sampler: MemorySampler
) -> list[RequestOutcome]:
    """Replay the trace with a progress line that shows where the memory is."""
    settings = ReplaySettings(ClientSettings(url, REPLAY_MAX_S), max_s=REPLAY_MAX_S - REPLAY_MARGIN_S)
    makers = {
        model.name: PromptMaker(Path(model.path) / "tokenizer.json") for model in load_config(config).models
    }
    columns = (
        TextColumn("replaying"),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=len(trace))

        def show(progress: ReplayProgress) -> None:
            memory = " · ".join(f"{name} {mapped / MIB:.0f}" for name, mapped in sampler.latest().items())
            bar.update(task, completed=progress.ended, description=f"mapped MiB: {memory}")

        return asyncio.run(replay(trace, settings, makers, show))


def _conclude(run: Run, config: Path, trace_rows: int, out: Path) -> int:
    """Write the report and the picture, print the table, and say what did not hold."""
    settings = load_config(config)
    budget_bytes = settings.devices[0].kv_budget_bytes
    report = make_report(run.outcomes, {m.name: Slo(m.slo.ttft_s, m.slo.tpot_s) for m in settings.models})
    problems = find_problems(run.series, budget_bytes) + _request_problems(run, report, trace_rows)
    write_outcomes(out / "outcomes.jsonl", run.outcomes)
    document = {
        **report.to_dict(),
        "budget_bytes": budget_bytes,
        "peak_mapped_bytes": max(run.series.whole().totals(), default=0),
        "model_peak_mapped_bytes": run.series.peaks(),
        "samples": len(run.series.times_s),
        "torn_samples": run.series.torn_samples,
        "engine_restarts": run.restarts,
        "seconds": run.seconds,
        "versions": versions(),
        "hardware": hardware(),
        "commit": commit(ROOT),
        "problems": problems,
    }
    (out / "report.json").write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    _write_samples(run.series, out / "memory.csv")
    whole = run.series.whole()
    if whole.times_s:
        draw_memory(whole, budget_bytes, out / "memory.png")
    console.print(report_table(report, "three models, one KV budget"))
    _print_memory(run.series, budget_bytes)
    console.print(", ".join(f"{name} {value:g}" for name, value in run.seconds.items()), style="dim")
    console.print(
        f"report {out / 'report.json'}\npicture {out / 'memory.png'}", soft_wrap=True, highlight=False
    )
    for problem in problems:
        console.print(f"FAILED: {problem}", style="red", markup=False)
    return 1 if problems else 0


def _request_problems(run: Run, report: Report, trace_rows: int) -> list[str]:
    problems = []
    if report.total.ok != trace_rows:
        problems.append(f"{trace_rows - report.total.ok} of {trace_rows} requests were not served")
        failed = [outcome for outcome in run.outcomes if outcome.status != "ok"]
        problems += [f"{o.request_id} ({o.model}) {o.status}: {o.error}" for o in failed[:5]]
    problems += [
        f"{name}: its engine was restarted {times} times" for name, times in run.restarts.items() if times
    ]
    return problems


def _print_memory(series: MemorySeries, budget_bytes: int) -> None:
    peaks = ", ".join(f"{name} {peak / MIB:.0f} MiB" for name, peak in series.peaks().items())
    total = max(series.whole().totals(), default=0)
    console.print(
        f"mapped KV memory: peak {total / MIB:.0f} of {budget_bytes / MIB:.0f} MiB; per model {peaks} "
        f"(in sum {sum(series.peaks().values()) / budget_bytes:.1f} times the budget); "
        f"{series.torn_samples} of {len(series.times_s)} samples torn",
        highlight=False,
    )


def _write_samples(series: MemorySeries, path: Path) -> None:
    names = list(series.mapped_bytes)
    torn = series.torn or [False] * len(series.times_s)
    rows = zip(series.times_s, *(series.mapped_bytes[name] for name in names), map(int, torn), strict=True)
    header = ",".join(["time_s", *names, "torn"])
    lines = [header, *(",".join([f"{row[0]:.3f}", *map(str, row[1:])]) for row in rows)]
    path.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
