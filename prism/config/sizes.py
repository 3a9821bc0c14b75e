"""Byte counts as people write them: 268435456, "256MiB", "1.5 GiB", "64KB"."""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_PATTERN = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*$")
SIZE_PATTERN = r"^\s*\d+(\.\d+)?\s*([KMGTkmgt]?[Ii]?[Bb])?\s*$"
"""The same as a JSON Schema pattern (a little wider: it cannot list every unit)."""


def parse_size(value: object) -> int:
    """Bytes of an int or a string with a unit; ValueError names value and remedy."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _PATTERN.match(value) if isinstance(value, str) else None
    factor = _UNITS.get(match.group(2).upper()) if match else None
    if match is None or factor is None:
        raise ValueError('write a size such as "256MiB", "1.5GiB", "64KB" or a whole number of bytes')
    whole, _, fraction = match.group(1).partition(".")
    denominator = int("1" + "0" * len(fraction))
    size, remainder = divmod(int(whole + fraction) * factor, denominator)
    if remainder:
        raise ValueError("is not a whole number of bytes")
    return size


def format_size(nbytes: int) -> str:
    """The shortest exact form: 268435456 -> "256MiB", 1000 -> "1000"."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes and nbytes % factor == 0:
            return f"{nbytes // factor}{unit}"
    return str(nbytes)


def approximate_size(nbytes: float) -> str:
    """For people: 268.4 MB-like precision in binary units, e.g. "255.9MiB"."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(nbytes) >= factor:
            return f"{nbytes / factor:.1f}{unit}"
    return f"{nbytes:.0f}B"
