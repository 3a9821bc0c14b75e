"""`prism serve`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer


def serve(
    config: Annotated[Path, typer.Option("--config", "-c", help="YAML configuration file.")],
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Overrides server.port; 0 takes a free one.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Serve the configured models until a signal (first: drain and stop; second: at once)."""
    from kvcached_sglang_plugin import require_own_package

    require_own_package("prism")  # another project's kvcached would break the imports below
    from prism.config import ConfigError
    from prism.config.budget import load_planned

    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
    )
    for noisy in ("asyncio", "uvicorn", "aiohttp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        settings, planned = load_planned(config)
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    if port is not None:
        settings = settings.model_copy(update={"server": settings.server.model_copy(update={"port": port})})
    from kvcached.errors import KvcachedError
    from prism.live.api_keys import ApiKeyError
    from prism.live.runtime_dir import RuntimeDirError
    from prism.live.server import ServeError
    from prism.live.server import serve as run

    try:
        run(settings, planned)
    except (ApiKeyError, RuntimeDirError, ServeError, KvcachedError, OSError) as error:
        typer.echo(f"prism cannot serve: {error}", err=True)
        raise typer.Exit(1) from None
