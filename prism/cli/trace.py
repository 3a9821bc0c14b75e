"""`prism trace`: look at traces and make them."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from prism.traces import TraceError, TraceRequest, read_trace, write_trace
from prism.traces.generator import BurstKind, Bursts, SyntheticModel, SyntheticTrace, generate
from prism.traces.stats import trace_stats

trace_app = typer.Typer(help="Look at request traces and make synthetic ones.", no_args_is_help=True)

_WHOLE_FROM = 100  # larger figures are shown without decimals
_COLUMNS = {
    "sent": ("requests",),
    "per s": ("requests_per_s",),
    "gap s\np50 longest": ("gap_p50_s", "longest_gap_s"),
    "CV of\ngaps minutes": ("gap_cv", "minute_cv"),
    "prompt\np50 p95": ("prompt_tokens_p50", "prompt_tokens_p95"),
    "output\np50 p95": ("output_tokens_p50", "output_tokens_p95"),
}


@trace_app.command("stats")
def stats(
    trace: Annotated[Path, typer.Argument(help="Trace, .csv or .csv.gz.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Print rates, burstiness and lengths per model."""
    figures = trace_stats(_read(trace))
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
        return
    table = Table(
        title=f"{trace.name}: {figures['span_s']:.1f} s", box=box.SIMPLE_HEAD, padding=0, show_edge=False
    )
    table.add_column("model", overflow="fold", min_width=12)
    for heading in _COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    models, total = figures["models"], figures["total"]
    if isinstance(models, dict) and isinstance(total, dict):
        for name, row in models.items():
            table.add_row(name, *_cells(row))
        table.add_section()
        table.add_row("all", *_cells(total), style="bold")
    Console().print(table)


@trace_app.command("synth")
def synth(
    out: Annotated[Path, typer.Argument(help="File to write, .csv or .csv.gz.")],
    models: Annotated[str, typer.Option(help="Model names, separated by commas, most asked first.")],
    duration_s: Annotated[float, typer.Option(help="Length of the trace in seconds.")] = 60.0,
    rate: Annotated[float, typer.Option(help="Requests per second over all models.")] = 2.0,
    alpha: Annotated[float, typer.Option(help="Exponent of the power law of rates.")] = 1.0,
    cv: Annotated[float, typer.Option(help="Coefficient of variation of inter-arrival times.")] = 1.0,
    bursts: Annotated[str, typer.Option(help="none, alternating or random.")] = "none",
    on_s: Annotated[float, typer.Option(help="Length of a burst (its mean, when random).")] = 10.0,
    gap_s: Annotated[float, typer.Option(help="Time between bursts (its mean, when random).")] = 0.0,
    idle_share: Annotated[float, typer.Option(help="Share of requests that ignore the bursts.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal traces.")] = 1,
) -> None:
    """Generate a trace."""
    kinds: dict[str, BurstKind] = {"none": "none", "alternating": "alternating", "random": "random"}
    if bursts not in kinds:
        raise typer.BadParameter(f"{bursts!r} is not one of {', '.join(kinds)}", param_hint="--bursts")
    names = [name.strip() for name in models.split(",") if name.strip()]
    try:
        spec = SyntheticTrace(
            models=tuple(SyntheticModel(name) for name in names),
            duration_s=duration_s,
            requests_per_s=rate,
            alpha=alpha,
            cv=cv,
            bursts=Bursts(kinds[bursts], on_s, gap_s, idle_share),
            seed=seed,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    requests = generate(spec)
    if not requests:
        raise typer.BadParameter("no request falls into this trace; raise --rate or --duration-s")
    write_trace(out, requests)
    typer.echo(f"{out}: {len(requests)} requests of {len(names)} models over {duration_s:g} s")


def _read(path: Path) -> list[TraceRequest]:
    try:
        return read_trace(path)
    except TraceError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(2) from error


def _cells(row: dict[str, float | None]) -> list[str]:
    return [" ".join(f"{_number(row[key]):>5}" for key in keys) for keys in _COLUMNS.values()]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= _WHOLE_FROM or value == int(value) else f"{value:.3g}"
