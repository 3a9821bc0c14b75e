"""Entry module of the SGLang plugin, and the one place that tells whose ``kvcached`` this is.

Another project on PyPI ships an import package ``kvcached`` and scripts of the same names. Whichever of the
two distributions is installed last owns the shared files, and uninstalling either one deletes them. That
project has no module of *this* name, so the check lives here, uses only the standard library, and runs before
anything imports ``kvcached`` (whose ``__init__`` may not be ours).

SGLang calls :func:`activate` (entry-point group ``sglang.srt.plugins``) in every process. SGLang merely logs
a plugin that raises and then serves without it, therefore every failure here becomes ``SystemExit`` with a
reason and a remedy.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import re
import sys
import traceback
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote, urlparse

if TYPE_CHECKING:
    from collections.abc import Iterable

DISTRIBUTION = "prism-kvcached"
PACKAGE = "kvcached"
_INIT = f"{PACKAGE}/__init__.py"
_REINSTALL = f"python -m pip install --force-reinstall --no-deps {DISTRIBUTION}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why ``import kvcached`` would not give this project's package, and what to do about it."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}\n  remedy: {self.remedy}"


@dataclass(frozen=True, slots=True)
class _Installed:
    """One installed distribution that has something to do with the import package."""

    name: str
    version: str
    folder: Path
    """The directory its RECORD paths start from (usually site-packages)."""
    files: dict[str, str]
    """Recorded path below ``kvcached/`` -> recorded hash (``sha256=...``, or empty)."""
    editable_root: Path | None
    """The source tree of an editable install, else None."""


def find_conflict() -> Conflict | None:
    """None when ``import kvcached`` gives this project's own files; else what is in the way.

    Looks at distribution metadata and files only; never imports ``kvcached``.
    """
    ours, others = _installed()
    rival = _rival_of(ours, others)
    if ours is not None and rival is not None:
        return Conflict(
            f"two installed distributions own the import package '{PACKAGE}': {ours.name} {ours.version} and "
            f"{rival.name} {rival.version}, both in {rival.folder}. The one installed last has "
            "overwritten files of the other",
            f"{_uninstall(rival.name)} && {_REINSTALL}",
        )
    if ours is not None and ours.files:
        damaged = _damage(ours)
        if damaged is not None:
            return damaged
    return _misresolved(ours, others)


def activate() -> None:
    """SGLang's plugin callable: switch kvcached on in this process, or stop the process with the reason.

    ``KVCACHED_ENABLE`` unset, empty or ``0`` leaves SGLang untouched; ``1`` activates; any other value stops
    the start.
    """
    wanted = os.environ.get("KVCACHED_ENABLE", "").strip()
    if wanted in ("", "0"):
        return
    if wanted != "1":
        _stop(
            f"KVCACHED_ENABLE={wanted!r} is neither 0 nor 1",
            "set KVCACHED_ENABLE=1 to use kvcached, or unset it to run SGLang without it",
        )
    try:
        conflict = find_conflict()
        if conflict is not None:
            _stop(conflict.reason, conflict.remedy)
        from kvcached.sglang.activate import activate_plugin

        activate_plugin()
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - SGLang would log it and serve without us
        traceback.print_exc(file=sys.stderr)
        _stop(
            f"the plugin could not be activated: {type(error).__name__}: {error}",
            "run `kvctl doctor` in this environment, or unset KVCACHED_ENABLE to run SGLang without kvcached",
        )


def require_own_package(program: str) -> None:
    """Stop a command-line program with the reason when ``import kvcached`` would not give our package."""
    conflict = find_conflict()
    if conflict is not None:
        print(f"{program}: {conflict.reason}\n  remedy: {conflict.remedy}", file=sys.stderr, flush=True)  # noqa: T201
        raise SystemExit(1)


def kvctl() -> None:
    """The ``kvctl`` script.

    It starts here because ``kvcached.cli`` may be somebody else's (module or package).
    """
    require_own_package("kvctl")
    from kvcached.cli import main

    raise SystemExit(main())


def _stop(reason: str, remedy: str) -> NoReturn:
    message = "kvcached: SGLang is stopped, because it would run without kvcached"
    print(f"{message}\n  reason: {reason}\n  remedy: {remedy}", file=sys.stderr, flush=True)  # noqa: T201
    raise SystemExit(1)


# ---- what is installed -------------------------------------------------------------------------------------


def _installed() -> tuple[_Installed | None, list[_Installed]]:
    """Our distribution (the first on the path, as import takes it) and every other owner of the package."""
    ours: _Installed | None = None
    others: list[_Installed] = []
    seen: set[Path] = set()
    for distribution in metadata.distributions():
        found = _describe(distribution, seen)
        if found is None:
            continue
        if _canonical(found.name) == DISTRIBUTION:
            ours = ours or found
        else:
            others.append(found)
    return ours, others


def _describe(distribution: metadata.Distribution, seen: set[Path]) -> _Installed | None:
    """What matters of one distribution; None if it has nothing to do with the package or was seen before."""
    name = distribution.metadata["Name"]
    if not name:
        return None
    record = distribution.read_text("RECORD") or ""
    canonical = _canonical(name)
    claims = canonical in (DISTRIBUTION, PACKAGE) or f"{PACKAGE}/" in record
    files = dict(_package_files(record.splitlines())) if claims else {}
    if canonical not in (DISTRIBUTION, PACKAGE) and _INIT not in files:
        return None
    folder = Path(os.path.realpath(str(distribution.locate_file(""))))
    key = folder / canonical
    if key in seen:
        return None
    seen.add(key)
    return _Installed(name, distribution.version, folder, files, _editable_root(distribution))


def _package_files(record_lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    """RECORD rows below ``kvcached/``: (path, hash). Byte code is left out: anyone may delete it."""
    for line in record_lines:
        if not line.startswith(f"{PACKAGE}/") or "__pycache__" in line:
            continue
        # path,hash,size: our file names need no CSV quoting, a rival's quoted ones never start with the bare
        # prefix
        path, digest, _size = line.rsplit(",", 2)
        yield path, digest


def _editable_root(distribution: metadata.Distribution) -> Path | None:
    """The source tree an editable install points at (PEP 610), else None."""
    text = distribution.read_text("direct_url.json")
    if not text:
        return None
    origin = json.loads(text)
    if not origin.get("dir_info", {}).get("editable"):
        return None
    url = urlparse(str(origin.get("url", "")))
    return Path(os.path.realpath(unquote(url.path))) if url.scheme == "file" else None


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# ---- the three questions -----------------------------------------------------------------------------------


def _rival_of(ours: _Installed | None, others: list[_Installed]) -> _Installed | None:
    """Another distribution in the same site directory: they share files, in whichever order they came."""
    if ours is None:
        return None
    return next((other for other in others if other.folder == ours.folder), None)


def _damage(ours: _Installed) -> Conflict | None:
    """Were our recorded files deleted or overwritten (by an uninstall of the other project, say)?"""
    missing = [path for path in ours.files if not (ours.folder / path).is_file()]
    if missing:
        return Conflict(
            f"{len(missing)} of {len(ours.files)} files of {ours.name} {ours.version} are missing from "
            f"{ours.folder}, {missing[0]} first. Uninstalling another distribution that ships an import "
            f"package '{PACKAGE}' deletes them",
            _REINSTALL,
        )
    algorithm, _, recorded = ours.files.get(_INIT, "").partition("=")
    if algorithm == "sha256" and _sha256(ours.folder / _INIT) != recorded:
        return Conflict(
            f"{ours.folder / _INIT} is not the file that {ours.name} {ours.version} installed: "
            "another distribution has overwritten it",
            f"{_uninstall(PACKAGE)} && {_REINSTALL}",
        )
    return None


def _misresolved(ours: _Installed | None, others: list[_Installed]) -> Conflict | None:
    """Would the import system take the package from the place where ours lies?"""
    home = _home(ours)
    origin = _import_origin()
    expected = home / _INIT
    if origin == expected:
        return None
    if origin is None:
        found = f"no regular package '{PACKAGE}' can be imported"
    else:
        owner = next((o for o in others if o.folder == origin.parent.parent), None)
        whose = f", which belongs to {owner.name} {owner.version}" if owner else ""
        found = f"`import {PACKAGE}` takes {origin}{whose}"
    remedy = f"{_uninstall(PACKAGE)} && {_REINSTALL}"
    if origin is not None and origin.parent.parent == Path.cwd():
        remedy = (
            f"start from another folder: the folder '{PACKAGE}' in {Path.cwd()} hides the installed package"
        )
    elif origin is not None:
        remedy += f", or take {origin.parent.parent} off the Python path"
    return Conflict(f"{found}, but this project's own is {expected}", remedy)


def _home(ours: _Installed | None) -> Path:
    """Where our package must lie: site-packages, the editable source tree, or this file's own folder."""
    if ours is None:
        return Path(os.path.realpath(__file__)).parent
    if ours.editable_root is not None and _INIT not in ours.files:
        root = ours.editable_root
        return root if (root / _INIT).is_file() else root / "src"
    return ours.folder


def _import_origin() -> Path | None:
    """The ``__init__.py`` that ``import kvcached`` would run (or has run), without importing it."""
    try:
        spec = importlib.util.find_spec(PACKAGE)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith("__init__.py"):
        return None
    return Path(os.path.realpath(spec.origin))


def _uninstall(name: str) -> str:
    return f"python -m pip uninstall -y {name}"


def _sha256(path: Path) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
