"""Find, create and open ledgers: the files that hold one device's budget for all its processes."""

from __future__ import annotations

import os
from pathlib import Path

from kvcached._core import Ledger
from kvcached.config import (
    Config,
    default_host_budget_bytes,
    default_ledger_path,
    ledger_dir,
    refuse_foreign_dir,
)
from kvcached.errors import ConfigError, Misuse

SUFFIX = ".ledger"


def device_name(device: str) -> str:
    """``cpu`` -> ``host0``, ``cuda`` or ``cuda:1`` -> ``cuda0`` or ``cuda1``: how ledger files name devices.

    Raises Misuse for anything else.
    """
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise Misuse(f"device {device!r} is unknown: use 'cpu', 'cuda' or 'cuda:<index>'")
    return f"{'host' if kind == 'cpu' else 'cuda'}{int(index or 0)}"


def device_of(path: str) -> str:
    """The device name in a ledger's file name, with what cannot be shown escaped."""
    return printable(Path(path).name.removesuffix(SUFFIX))


def checked_path(path: str) -> str:
    """The same path. Misuse where it is no UTF-8, which the core and its messages need."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise Misuse(f"ledger {printable(path)}: its path is no UTF-8; it cannot be one of ours") from None
    return path


def printable(text: str) -> str:
    """Control characters, and bytes that are no UTF-8, escaped: they would steer whoever shows them."""
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in text
    )


def open_ledger(config: Config, device: str) -> Ledger:
    """The ledger of a device (``cpu``, ``cuda:0``), created when it does not exist yet.

    Without ``budget_bytes`` an existing ledger keeps its budget; a new host ledger gets the default share of
    memory.

    Raises:
        ConfigError: a CUDA ledger would have to be created and no budget is set, or the default folder is
            another user's.
        Misuse: unsafe file or folder, or another budget while clients live on the old one.
    """
    name = device_name(device)
    path = config.ledger_path or default_ledger_path(name)
    if config.ledger_path is None:
        refuse_foreign_dir(Path(path).parent)
    if config.budget_bytes is not None:
        _make_private_dir(path)
        return Ledger(path, config.budget_bytes)
    if Path(path).exists():
        return Ledger(path)
    if name.startswith("cuda"):
        raise ConfigError(
            f"{path} does not exist and no budget is set for {name}: set KVCACHED_BUDGET_BYTES to the bytes "
            "that all KV caches on this device may hold together"
        )
    _make_private_dir(path)
    try:
        return Ledger(path, default_host_budget_bytes())
    except Misuse:
        # Another process created it between our look and now, with the share it saw: its budget is as good as
        # ours.
        return Ledger(path)


def find_ledgers(directory: Path | None = None) -> list[str]:
    """Paths of all ledgers in a directory (the default one when None), sorted; empty when there is none.

    Raises ConfigError where the default one is another user's.
    """
    folder = directory or ledger_dir()
    if directory is None:
        refuse_foreign_dir(folder)
    try:
        return sorted(entry.path for entry in os.scandir(folder) if entry.name.endswith(SUFFIX))
    except FileNotFoundError:
        return []


def _make_private_dir(path: str) -> None:
    """Create the ledger's folder for this user alone; an existing one stays as it is (the core judges it)."""
    Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
