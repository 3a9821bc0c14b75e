"""`prism models`: which models a running prism serves, and why not."""

from __future__ import annotations

import json

import typer

from prism.cli.client import DEFAULT_URL, JsonOption, KeyFileOption, UrlOption, fetch


def models(
    url: UrlOption = DEFAULT_URL, api_key_file: KeyFileOption = None, as_json: JsonOption = False
) -> None:
    """List the models of a running prism."""
    document = fetch(url, "/v1/models", api_key_file)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "phase", "device", "longest request", "detail")
    for model in document["data"]:
        status = model["status"]
        longest = model["max_model_len"]
        table.add_row(
            model["id"],
            status["phase"],
            status["device"] or "-",
            "-" if longest is None else f"{longest} tokens",
            status["detail"].replace("[", r"\["),
        )
    Console(highlight=False).print(table)
