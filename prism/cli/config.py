"""`prism config`: validate, schema, show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

config_app = typer.Typer(help="Check configuration files.", no_args_is_help=True, rich_markup_mode=None)

FileArgument = Annotated[Path, typer.Argument(help="YAML configuration file.")]


@config_app.command()
def validate(file: FileArgument) -> None:
    """Check a file, model folders and budgets included. Exit status 0: usable; 2: not, with every reason."""
    from prism.config import ConfigError
    from prism.config.budget import load_planned

    try:
        config, planned = load_planned(file)
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    for model in planned:
        if model.reason is not None:
            typer.echo(
                f"warning: model {model.settings.name} would be reported failed: {model.reason}", err=True
            )
    typer.echo(f"{file}: ok, {len(config.models)} models on {len(config.devices)} devices")


@config_app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file."""
    from prism.config.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@config_app.command()
def show(file: FileArgument) -> None:
    """Print the file with every default filled in."""
    import yaml

    from prism.config import ConfigError, load_config

    try:
        config = load_config(file)
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True), nl=False)
