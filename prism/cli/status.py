"""`prism status`: devices, memory and models of a running prism."""

from __future__ import annotations

import json
from typing import Any

import typer

from prism.cli.client import DEFAULT_URL, JsonOption, KeyFileOption, UrlOption, fetch


def status(
    url: UrlOption = DEFAULT_URL, api_key_file: KeyFileOption = None, as_json: JsonOption = False
) -> None:
    """Show devices, KV memory and the state of every model of a running prism."""
    document = fetch(url, "/status", api_key_file)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    _print(document)


def _print(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from prism.config.sizes import approximate_size

    console = Console(highlight=False)
    state = "stopping" if document["draining"] else "serving"
    console.print(
        f"{state} for {document['uptime_s']:.0f} s, {document['requests']} requests now", markup=False
    )
    devices = Table("device", "kind", "KV used", "KV budget")
    for device in document["devices"]:
        used, budget = device["kv_used_bytes"], device["kv_budget_bytes"]
        devices.add_row(device["name"], device["kind"], approximate_size(used), approximate_size(budget))
    console.print(devices)
    models = Table("model", "phase", "device", "waiting", "running", "KV used", "KV floor", "detail")
    for model in document["models"]:
        kv = model["kv"]
        models.add_row(
            model["name"],
            model["phase"],
            model["device"] or "-",
            str(model["waiting"]),
            str(model["running"]),
            approximate_size(kv["used_bytes"]) if kv else "-",
            approximate_size(kv["floor_bytes"]) if kv else "-",
            model["detail"].replace("[", r"\["),
        )
    console.print(models)
