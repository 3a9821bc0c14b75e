"""`prism simulate`: a trace through the service's own schedulers, in virtual time."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from prism.config import Config, ConfigError, load_config
from prism.config.budget import PlannedModel, check_budgets, plan_models
from prism.config.scheduling import global_config, local_config
from prism.report import Report, Slo, make_report, report_table
from prism.sim import Profile, ProfileError, SimModel, SimSetup, load_profile
from prism.sim import simulate as run_simulation
from prism.sim.simulate import SimResult
from prism.traces import TraceError, TraceRequest, read_trace

EXIT_USAGE = 2


def simulate(
    trace: Annotated[Path, typer.Argument(help="Trace, .csv or .csv.gz.")],
    config: Annotated[
        Path, typer.Option("--config", "-c", help="prism's configuration: models, devices, SLOs.")
    ],
    profile: Annotated[
        Path | None, typer.Option(help="Engine speeds (YAML); without it rough defaults for a CPU are used.")
    ] = None,
    rate_scale: Annotated[float, typer.Option(help="Arrival rates times this; 2 halves the gaps.")] = 1.0,
    slo_scale: Annotated[float, typer.Option(help="Objectives times this.")] = 1.0,
    cold: Annotated[
        bool, typer.Option("--cold", help="Models load first; else they are ready at time 0.")
    ] = False,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
    event_log: Annotated[
        Path | None, typer.Option(help="Write every scheduler event and command here (JSON lines).")
    ] = None,
) -> None:
    """Simulate a trace: the same schedulers as `prism serve`, simulated engines, no hardware."""
    if not (rate_scale > 0 and slo_scale > 0):
        _stop("--rate-scale and --slo-scale must be more than 0")
    try:
        settings = load_config(config)
        speeds = Profile() if profile is None else load_profile(profile)
        rows = read_trace(trace)
        setup = _setup(settings, speeds, slo_scale, warm=not cold)
        _check_models(trace, rows, setup)
        result = _run([_scaled(row, rate_scale, slo_scale) for row in rows], setup, event_log)
    except (ConfigError, ProfileError, TraceError, ValueError, OSError) as error:
        _stop(str(error))
    report = _report(result, settings, slo_scale)
    console = Console()
    console.print(report_table(report, f"simulated: {trace.name}"))
    if profile is None:
        console.print(
            "engine speeds are rough defaults for a CPU; give --profile for your machine", style="dim"
        )
    if as_json is not None:
        _write_json(as_json, report, result)


def _setup(settings: Config, speeds: Profile, slo_scale: float, *, warm: bool) -> SimSetup:
    planned = plan_models(settings)
    unusable = [model for model in planned if model.reason is not None]
    if unusable:
        raise ValueError(f"model {unusable[0].settings.name}: {unusable[0].reason}")
    problems = check_budgets(settings, planned)
    if problems:
        raise ValueError("\n".join(str(problem) for problem in problems))
    placement = global_config(settings, planned)
    scaled = tuple(
        replace(m, ttft_slo_s=m.ttft_slo_s * slo_scale, tpot_slo_s=m.tpot_slo_s * slo_scale)
        for m in placement.models
    )
    return SimSetup(
        placement=replace(placement, models=scaled),
        devices=tuple(local_config(settings, device.name, planned) for device in settings.devices),
        models=tuple(_sim_model(model) for model in planned),
        profile=speeds,
        request_timeout_s=settings.server.request_timeout_s,
        warm=warm,
    )


def _sim_model(model: PlannedModel) -> SimModel:
    engine = model.settings.engine
    return SimModel(
        model.settings.name,
        engine.max_total_tokens,
        engine.max_running_requests,
        model.settings.kv.limit_bytes,
    )


def _check_models(trace: Path, rows: list[TraceRequest], setup: SimSetup) -> None:
    known = {model.name for model in setup.models}
    for row in rows:
        if row.model not in known:
            raise ValueError(
                f"{trace}: model {row.model!r} is not in the configuration ({', '.join(sorted(known))})"
            )


def _scaled(row: TraceRequest, rate_scale: float, slo_scale: float) -> TraceRequest:
    return TraceRequest(
        row.arrival_s / rate_scale,
        row.model,
        row.prompt_tokens,
        row.output_tokens,
        None if row.ttft_slo_s is None else row.ttft_slo_s * slo_scale,
        None if row.tpot_slo_s is None else row.tpot_slo_s * slo_scale,
    )


def _run(rows: list[TraceRequest], setup: SimSetup, event_log: Path | None) -> SimResult:
    if event_log is None:
        return run_simulation(rows, setup)
    with open(event_log, "w", encoding="utf-8", opener=_private) as out:
        return run_simulation(rows, setup, out)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _report(result: SimResult, settings: Config, slo_scale: float) -> Report:
    slos = {m.name: Slo(m.slo.ttft_s * slo_scale, m.slo.tpot_s * slo_scale) for m in settings.models}
    return make_report(result.outcomes, slos)


def _write_json(path: Path, report: Report, result: SimResult) -> None:
    figures = {
        "simulated": True,
        **report.to_dict(),
        "peak_bytes": result.peak_bytes,
        "retractions": result.retractions,
        "unplaced": result.unplaced,
    }
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _stop(message: str) -> NoReturn:
    Console(stderr=True).print(f"error: {message}", style="red", markup=False)
    raise typer.Exit(EXIT_USAGE)
