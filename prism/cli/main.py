"""Entry point of `prism`: collects the subcommands. Each imports its heavy parts only when it runs."""

from __future__ import annotations

import importlib

import typer

from prism.cli.config import config_app
from prism.cli.models import models
from prism.cli.serve import serve
from prism.cli.status import status

app = typer.Typer(
    name="prism",
    help="Serve many LLMs from few devices: one endpoint, one KV memory budget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command()(serve)
app.command()(models)
app.command()(status)
app.add_typer(config_app, name="config")


def _register(module: str, attribute: str, name: str) -> None:
    """Add another part's command; its absence must not break the others."""
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        reason = f"prism {name} is not available: {error}"

        def unavailable() -> None:
            typer.echo(reason, err=True)
            raise typer.Exit(2)

        app.command(name, help=reason)(unavailable)
        return
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    else:
        app.command(name)(found)


_register("prism.cli.simulate", "simulate", "simulate")
_register("prism.cli.trace", "trace_app", "trace")
_register("prism.cli.replay", "replay", "replay")


if __name__ == "__main__":
    app()
