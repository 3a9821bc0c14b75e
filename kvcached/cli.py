"""``kvctl``: look at the budgets of this machine's devices, change them, and find what may be wrong."""

# ruff: noqa: T201 - printing is what this module is for
from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from kvcached import doctor
from kvcached._core import Ledger
from kvcached.config import Config, ledger_dir, parse_size_bytes
from kvcached.controls import find_target
from kvcached.errors import KvcachedError
from kvcached.ledgers import checked_path, find_ledgers, printable
from kvcached.stats import LedgerStats, read_ledger
from kvcached.table import HOLDINGS, MOVEMENTS, ledger_table, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MARKS = {"ok": "ok  ", "note": "note", "warn": "warn", "fail": "FAIL"}
_MOST_SECONDS = 1e6
_MOST_BYTES = 1 << 47
_MOST_PRIORITY = (1 << 31) - 1
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")
_CLEAR_SCREEN = "\x1b[H\x1b[2J"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``kvctl``; the exit code: 0 well, 1 something is wrong, 2 wrong usage (by argparse)."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except (KvcachedError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            return 1
        if options.json:
            print(json.dumps({"error": str(error)}))
        else:
            print(f"kvctl: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvctl", description="Shared memory budgets of this machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[argparse.Namespace], int], summary: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.add_argument(
            "--ledger",
            metavar="PATH",
            action="append",
            help=f"this ledger file (may be repeated); without it, KVCACHED_LEDGER and all in {ledger_dir()}",
        )
        sub.set_defaults(command=command)
        return sub

    add("list", _list, "who holds how much of each device's budget")
    top = add("top", _top, "the same, live, with who wants and who is asked to give back")
    top.add_argument("--interval", type=_seconds, default=1.0, metavar="S", help="seconds between looks")
    top.add_argument("--count", type=_count, metavar="N", help="end after so many looks; without it, never")
    limit = add("limit", _set, "set the most a client may hold; used memory goes as its requests end")
    floor = add("floor", _set, "set what a client is guaranteed")
    priority = add("priority", _set, "set who is served first and gives back last: the higher")
    reclaim = add("reclaim", _reclaim, "ask a client to give memory back now, not below its floor")
    for sub in (limit, floor, priority, reclaim):
        sub.add_argument("client", metavar="CLIENT", help="its name, its pid, or @SLOT")
    limit.add_argument("size", type=_size_or_none, metavar="SIZE|none", help="such as 4GiB; none lifts it")
    limit.set_defaults(change=lambda target, options: target.set_limit(options.size))
    floor.add_argument("size", type=_size, metavar="SIZE", help="such as 512MiB")
    floor.set_defaults(change=lambda target, options: target.set_floor(options.size))
    priority.add_argument("priority", type=_priority, metavar="N")
    priority.set_defaults(change=lambda target, options: target.set_priority(options.priority))
    reclaim.add_argument("size", type=_size, metavar="SIZE", help="how much, such as 1GiB")
    reclaim.add_argument("--within", type=_seconds, default=5.0, metavar="S", help="how long to ask and wait")
    add("clean", _clean, "remove ledgers that no living process has open")
    add("doctor", _doctor, "check the installation, this machine, and running SGLang engines")
    return parser


def _size(text: str) -> int:
    try:
        nbytes = parse_size_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if nbytes > _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{text} is more than any device has: give at most 128TiB")
    return nbytes


def _size_or_none(text: str) -> int | None:
    return None if text.lower() == "none" else _size(text)


def _priority(text: str) -> int:
    if not _INTEGER.fullmatch(text) or not -_MOST_PRIORITY <= int(text) <= _MOST_PRIORITY:
        raise argparse.ArgumentTypeError(f"give an integer from -{_MOST_PRIORITY} to {_MOST_PRIORITY}")
    return int(text)


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("give 1 or more")
    return count


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"give seconds above 0 and below {_MOST_SECONDS:.0f}")
    return seconds


# ---- looking -----------------------------------------------------------------------------------------------


def _paths(options: argparse.Namespace) -> list[str]:
    """The ledgers asked for; else the one that processes of this environment use, and all in the folder."""
    found = find_ledgers()
    ours = Config.from_env().ledger_path
    if ours and Path(ours).exists() and ours not in found:
        found = [ours, *found]
    return options.ledger or found


def _read_all(options: argparse.Namespace) -> tuple[list[LedgerStats], list[dict[str, str]]]:
    """What can be read, and the errors of what cannot."""
    ledgers: list[LedgerStats] = []
    failures: list[dict[str, str]] = []
    for path in _paths(options):
        try:
            ledgers.append(read_ledger(path))
        except (KvcachedError, OSError) as error:
            failures.append({"path": path, "error": str(error)})
    return ledgers, failures


def _list(options: argparse.Namespace) -> int:
    ledgers, failures = _read_all(options)
    if options.json:
        print(json.dumps({"ledgers": [ledger.as_dict() for ledger in ledgers], "errors": failures}, indent=2))
    else:
        tables = [ledger_table(ledger, HOLDINGS) for ledger in ledgers]
        if tables or not failures:
            print("\n\n".join(tables) or f"no ledgers in {ledger_dir()}")
        _complain(failures)
    return 1 if failures else 0


def _complain(failures: list[dict[str, str]]) -> None:
    for failure in failures:
        print(printable(f"kvctl: {failure['path']}: {failure['error']}"), file=sys.stderr)


def _top(options: argparse.Namespace) -> int:
    looks = 0
    while True:
        ledgers, failures = _read_all(options)
        if options.json:
            look = {"time_s": time.time(), "ledgers": [ledger.as_dict() for ledger in ledgers]}
            print(json.dumps({**look, "errors": failures}), flush=True)
        else:
            tables = [ledger_table(ledger, MOVEMENTS, bar=True) for ledger in ledgers]
            tables += [printable(f"{failure['path']}: {failure['error']}") for failure in failures]
            text = "\n\n".join(tables) or f"no ledgers in {ledger_dir()}"
            print((_CLEAR_SCREEN if sys.stdout.isatty() else "") + text, flush=True)
        looks += 1
        if looks == options.count:
            return 1 if failures else 0
        time.sleep(options.interval)


# ---- changing ----------------------------------------------------------------------------------------------


def _set(options: argparse.Namespace) -> int:
    target = find_target(options.client, _paths(options))
    options.change(target, options)
    client = target.read()
    if options.json:
        print(json.dumps({"client": asdict(client)}, indent=2))
        return 0
    print(
        f"{printable(client.name)} (pid {client.pid}): holds {size_text(client.used_bytes)}, floor "
        f"{size_text(client.floor_bytes)}, limit {size_text(client.limit_bytes)}, priority {client.priority}"
    )
    if client.limit_bytes is not None and client.used_bytes > client.limit_bytes:
        in_use = "the rest goes as its requests end" if client.rows_used else "it reports no rows in use"
        over = size_text(client.used_bytes - client.limit_bytes)
        print(f"{over} above its limit are asked back now; {in_use}")
    return 0


def _reclaim(options: argparse.Namespace) -> int:
    target = find_target(options.client, _paths(options))
    asked_bytes, released_bytes = target.recall(options.size, options.within)
    client = target.look()
    if options.json:
        outcome = {"asked_bytes": asked_bytes, "released_bytes": released_bytes}
        print(json.dumps({"client": asdict(client) if client else None, **outcome}, indent=2))
    else:
        print(f"{size_text(released_bytes)} of {size_text(asked_bytes)} came back")
    return 0 if released_bytes >= asked_bytes else 1


def _clean(options: argparse.Namespace) -> int:
    """Only ledgers go, and blank files that are named as ledgers in the ledgers' own folder."""
    ours = find_ledgers()
    removed: list[str] = []
    kept: list[dict[str, str]] = []
    failures: list[dict[str, str]] = []
    for path in options.ledger or ours:
        try:
            if Ledger.remove_unused(checked_path(path), even_if_blank=str(Path(path).absolute()) in ours):
                removed.append(path)
            else:
                kept.append({"path": path, "reason": "in use"})
        except (KvcachedError, OSError) as error:
            failures.append({"path": path, "error": str(error)})
    if options.json:
        print(json.dumps({"removed": removed, "kept": kept, "errors": failures}, indent=2))
    else:
        lines = [f"removed {path}" for path in removed] + [f"kept {o['path']}: {o['reason']}" for o in kept]
        print("\n".join(map(printable, lines)) or f"no ledgers in {ledger_dir()}")
        _complain(failures)
    return 1 if failures else 0


# ---- examining ---------------------------------------------------------------------------------------------


def _doctor(options: argparse.Namespace) -> int:
    checks = doctor.examine(options.ledger)
    healthy = all(check.status != "fail" for check in checks)
    if options.json:
        print(json.dumps({"healthy": healthy, "checks": [asdict(check) for check in checks]}, indent=2))
        return 0 if healthy else 1
    for check in checks:
        print(printable(f"{_MARKS[check.status]}  {check.name}: {check.detail}"))
        if check.remedy:
            print(printable(f"      remedy: {check.remedy}"))
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
