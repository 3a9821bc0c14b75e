"""A model folder that is either complete or absent, whoever interrupts its making."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

RECIPE_FILE = "made_from.json"


def recipe_key(recipe: Mapping[str, object], *sources: Path) -> str:
    """Digest of what decides a folder's content: the parameters and the source files that use them."""
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True, default=str).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def is_made(folder: Path, key: str) -> bool:
    """Whether ``folder`` was made completely from exactly this recipe."""
    try:
        made = json.loads((folder / RECIPE_FILE).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(made, dict) and made.get("key") == key


def make_folder(folder: Path, key: str, recipe: Mapping[str, object], fill: Callable[[Path], None]) -> bool:
    """Fill a temporary sibling, then rename it onto ``folder``. Returns False when it was already there.

    A reader never sees a half-written model: the rename is the last step, and two makers at once end
    with one of their (equal) results.
    """
    if is_made(folder, key):
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        work.chmod(0o755)
        fill(work)
        (work / RECIPE_FILE).write_text(json.dumps({"key": key, "recipe": recipe}, indent=1, default=str))
        _replace_folder(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return True


def _replace_folder(work: Path, folder: Path) -> None:
    """Rename ``work`` to ``folder``; an older folder steps aside first (rename cannot replace a full one)."""
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    try:
        if folder.exists():
            os.rename(folder, aside / "old")
        os.rename(work, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
