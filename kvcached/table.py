"""Ledgers as text for people: sizes with units, one table per ledger, a bar for the budget."""

from __future__ import annotations

from collections.abc import Callable

from kvcached.ledgers import printable
from kvcached.stats import ClientStats, LedgerStats

_KIB = 1024
_BAR_CELLS = 40


def size_text(nbytes: int | None) -> str:
    """``1536`` -> ``1.5 KiB``; None -> ``-``."""
    if nbytes is None:
        return "-"
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < _KIB:
            break
        value, unit = value / _KIB, larger
    return f"{value:.1f} {unit}" if unit != "B" else f"{nbytes} B"


_Columns = dict[str, Callable[[ClientStats], str]]

HOLDINGS: _Columns = {
    "NAME": lambda client: printable(client.name),
    "KIND": lambda client: client.kind,
    "PID": lambda client: str(client.pid),
    "USED": lambda client: size_text(client.used_bytes),
    "MAPPED": lambda client: size_text(client.mapped_bytes),
    "FLOOR": lambda client: size_text(client.floor_bytes),
    "LIMIT": lambda client: size_text(client.limit_bytes),
    "PRIORITY": lambda client: str(client.priority),
    "ROWS USED": lambda client: str(client.rows_used),
    "ROWS BACKED": lambda client: str(client.rows_backed),
}
"""What `kvctl list` shows."""

MOVEMENTS: _Columns = {
    name: HOLDINGS[name] for name in ("NAME", "KIND", "PID", "PRIORITY", "USED", "FLOOR", "LIMIT")
} | {
    "SPARE": lambda client: size_text(client.spare_bytes),
    "WANTS": lambda client: size_text(client.want_bytes or None),
    "ASKED FOR": lambda client: size_text(client.asked_bytes or None),
}
"""What `kvctl top` shows."""


def ledger_table(ledger: LedgerStats, columns: _Columns, *, bar: bool = False) -> str:
    """A head line about the budget, a bar where asked for, and a row for each client."""
    kinds = ", ".join(f"{kind} {size_text(used)}" for kind, used in ledger.used_bytes_by_kind.items())
    used = f"used {size_text(ledger.used_bytes)}" + (f" ({kinds})" if kinds else "")
    lines = [f"{ledger.device}  budget {size_text(ledger.budget_bytes)}, {used}  {printable(ledger.path)}"]
    if bar:
        share = min(1.0, ledger.used_bytes / ledger.budget_bytes)
        lines.append(f"[{'#' * round(share * _BAR_CELLS):.<{_BAR_CELLS}}] {share:.0%}")
    if not ledger.clients:
        return "\n".join([*lines, "no clients"])
    rows = [tuple(columns), *(tuple(cell(client) for cell in columns.values()) for client in ledger.clients)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join(lines)
