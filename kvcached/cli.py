"""``kvctl``: look at the budgets of this machine's devices and at what may be wrong with the installation."""

# ruff: noqa: T201 - printing is what this module is for
from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from kvcached import doctor
from kvcached.config import ledger_dir
from kvcached.errors import KvcachedError
from kvcached.ledgers import find_ledgers
from kvcached.stats import ClientStats, LedgerStats, read_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MARKS = {"ok": "ok  ", "note": "note", "warn": "warn", "fail": "FAIL"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``kvctl``; the exit code: 0 well, 1 something is wrong, 2 wrong usage (by argparse)."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except KvcachedError as error:
        print(f"kvctl: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvctl", description="Shared KV-cache budgets of this machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, summary in (
        ("list", _list, "who holds how much of each device's budget"),
        ("doctor", _doctor, "check the installation, this machine, and running SGLang engines"),
    ):
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.add_argument(
            "--ledger",
            metavar="PATH",
            action="append",
            help=f"this ledger file (may be repeated); without it, all in {ledger_dir()}",
        )
        sub.set_defaults(command=command)
    return parser


def _list(options: argparse.Namespace) -> int:
    ledgers: list[LedgerStats] = []
    failures: list[dict[str, str]] = []
    for path in options.ledger or find_ledgers():
        try:
            ledgers.append(read_ledger(path))
        except (KvcachedError, OSError) as error:
            failures.append({"path": path, "error": str(error)})
    if options.json:
        print(json.dumps({"ledgers": [ledger.as_dict() for ledger in ledgers], "errors": failures}, indent=2))
    else:
        print("\n\n".join(_table(ledger) for ledger in ledgers) or f"no ledgers in {ledger_dir()}")
        for failure in failures:
            print(f"kvctl: {failure['path']}: {failure['error']}", file=sys.stderr)
    return 1 if failures else 0


def _doctor(options: argparse.Namespace) -> int:
    checks = doctor.examine(options.ledger or find_ledgers(), ledger_dir() if not options.ledger else None)
    healthy = all(check.status != "fail" for check in checks)
    if options.json:
        print(json.dumps({"healthy": healthy, "checks": [asdict(check) for check in checks]}, indent=2))
        return 0 if healthy else 1
    for check in checks:
        print(f"{_MARKS[check.status]}  {check.name}: {check.detail}")
        if check.remedy:
            print(f"      remedy: {check.remedy}")
    return 0 if healthy else 1


# ---- text --------------------------------------------------------------------------------------------------

_KIB = 1024
_COLUMNS = ("NAME", "PID", "USED", "MAPPED", "FLOOR", "LIMIT", "PRIORITY", "ROWS USED", "ROWS BACKED")


def _table(ledger: LedgerStats) -> str:
    budget, used = _size(ledger.budget_bytes), _size(ledger.used_bytes)
    head = f"{ledger.device}  budget {budget}, used {used}  {ledger.path}"
    rows = [_COLUMNS, *(_row(client) for client in ledger.clients)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([head, *lines] if ledger.clients else [head, "no clients"])


def _row(client: ClientStats) -> tuple[str, ...]:
    return (
        client.name,
        str(client.pid),
        _size(client.used_bytes),
        _size(client.mapped_bytes),
        _size(client.floor_bytes),
        _size(client.limit_bytes),
        str(client.priority),
        str(client.rows_used),
        str(client.rows_backed),
    )


def _size(nbytes: int | None) -> str:
    """``1536`` -> ``1.5 KiB``; None -> ``-``."""
    if nbytes is None:
        return "-"
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < _KIB:
            break
        value, unit = value / _KIB, larger
    return f"{value:.1f} {unit}" if unit != "B" else f"{nbytes} B"


if __name__ == "__main__":
    sys.exit(main())
