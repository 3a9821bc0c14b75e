"""`prism replay`: send a trace to a running service and report latencies and SLO attainment."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from prism.config import Config, ConfigError, load_config
from prism.replay import ClientSettings, PromptMaker, ReplaySettings, write_outcomes
from prism.replay import Progress as ReplayProgress
from prism.replay import replay as run_replay
from prism.report import RequestOutcome, Slo, make_report, report_table
from prism.traces import TraceError, TraceRequest, read_trace

EXIT_NOT_ALL_OK = 1
EXIT_USAGE = 2


def replay(
    trace: Annotated[Path, typer.Argument(help="Trace, .csv or .csv.gz.")],
    url: Annotated[str, typer.Option(help="Service to send to.")] = "http://127.0.0.1:8000",
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="prism's configuration: SLOs and model folders (tokenizers)."),
    ] = None,
    ttft_slo_s: Annotated[
        float, typer.Option(help="TTFT objective of models the config does not name.")
    ] = 2.0,
    tpot_slo_s: Annotated[
        float, typer.Option(help="TPOT objective of models the config does not name.")
    ] = 0.2,
    time_scale: Annotated[float, typer.Option(help="Multiplies arrival times; 0.5 is twice as fast.")] = 1.0,
    max_seconds: Annotated[float, typer.Option(help="End then: later rows are not sent.")] = 3600.0,
    timeout_s: Annotated[float, typer.Option(help="Limit for one request.")] = 300.0,
    ignore_eos: Annotated[
        bool, typer.Option(help="Force the trace's output lengths (an extension of SGLang's).")
    ] = True,
    api_key_file: Annotated[Path | None, typer.Option(help="File whose first line is the API key.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
    outcomes_file: Annotated[
        Path | None, typer.Option("--outcomes", help="Write every outcome here (.jsonl).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0,
) -> None:
    """Replay a trace, open loop: a slow answer never delays the next arrival.

    Exits 1 when a request was not served. TTFT counts from a request's arrival to its first non-empty token.
    """
    rows = _read(trace)
    settings = _config(config)
    client = ClientSettings(url, timeout_s, ignore_eos, _key(api_key_file))
    try:
        plan = ReplaySettings(client, time_scale, max_seconds, seed)
        makers = prompt_makers(settings, seed)
        outcomes = _run(rows, plan, makers)
    except ValueError as error:
        _fail(str(error))
    report = make_report(outcomes, model_slos(rows, settings, Slo(ttft_slo_s, tpot_slo_s)))
    if outcomes_file is not None:
        write_outcomes(outcomes_file, outcomes)
    if as_json is not None:
        as_json.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
    Console().print(report_table(report, f"{trace.name} at {url}"))
    for outcome in [o for o in outcomes if o.status != "ok"][:5]:
        typer.echo(f"{outcome.request_id} ({outcome.model}): {outcome.status}: {outcome.error}")
    if len(outcomes) < len(rows):
        typer.echo(
            f"{len(rows) - len(outcomes)} of {len(rows)} rows were due after --max-seconds and not sent"
        )
    if report.total.ok < report.total.requests:
        raise typer.Exit(EXIT_NOT_ALL_OK)


def prompt_makers(config: Config | None, seed: int) -> dict[str, PromptMaker]:
    """A prompt maker with the model's own tokenizer for every configured model whose folder has one."""
    makers = {}
    for model in config.models if config is not None else []:
        tokenizer = Path(model.path) / "tokenizer.json"
        if tokenizer.is_file():
            makers[model.name] = PromptMaker(tokenizer, seed)
    return makers


def model_slos(rows: list[TraceRequest], config: Config | None, default: Slo) -> dict[str, Slo]:
    """The objectives of every model in the trace."""
    configured = {
        m.name: Slo(m.slo.ttft_s, m.slo.tpot_s) for m in (config.models if config is not None else [])
    }
    return {name: configured.get(name, default) for name in sorted({row.model for row in rows})}


def _run(
    rows: list[TraceRequest], settings: ReplaySettings, makers: dict[str, PromptMaker]
) -> list[RequestOutcome]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replaying", total=len(rows))

        def show(progress: ReplayProgress) -> None:
            running = progress.sent - progress.ended
            bar.update(
                task, completed=progress.ended, description=f"{running} running, {progress.not_ok} not ok"
            )

        return asyncio.run(run_replay(rows, settings, makers, show))


def _read(path: Path) -> list[TraceRequest]:
    try:
        return read_trace(path)
    except TraceError as error:
        _fail(str(error))


def _config(path: Path | None) -> Config | None:
    try:
        return None if path is None else load_config(path)
    except ConfigError as error:
        _fail(str(error))


def _key(path: Path | None) -> str | None:
    try:
        return None if path is None else path.read_text("utf-8").split("\n", 1)[0].strip()
    except OSError as error:
        _fail(f"{path}: cannot be read: {error}")


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(f"error: {message}", style="red", markup=False)
    raise typer.Exit(EXIT_USAGE)
