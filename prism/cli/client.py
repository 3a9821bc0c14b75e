"""Asking a running prism over HTTP, for `prism status` and `prism models`."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

DEFAULT_URL = "http://127.0.0.1:8000"
_TIMEOUT_S = 10.0
_MAX_ANSWER_BYTES = 16 * 2**20

UrlOption = Annotated[str, typer.Option("--url", "-u", help="Address of the running prism.")]
KeyFileOption = Annotated[
    Path | None, typer.Option("--api-key-file", help="File whose first line is an API key.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def fetch(url: str, path: str, key_file: Path | None) -> Any:
    """The JSON at `url` + `path`; on failure says why and exits with 1."""
    request = urllib.request.Request(url.rstrip("/") + path)
    if request.type not in ("http", "https"):
        typer.echo(f"{url!r} is no http address", err=True)
        raise typer.Exit(2)
    try:
        if key_file is not None:
            key = key_file.read_text(encoding="utf-8").split("\n", 1)[0].strip()
            request.add_header("authorization", f"Bearer {key}")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return json.loads(response.read(_MAX_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        typer.echo(f"{url}{path} answered {error.code}: {_message(error)}", err=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        typer.echo(f"{url} is not reachable ({reason}); is `prism serve` running there? Use --url", err=True)
    raise typer.Exit(1)


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(_MAX_ANSWER_BYTES))["error"]["message"])
    except (ValueError, LookupError, TypeError, OSError):
        return error.reason
