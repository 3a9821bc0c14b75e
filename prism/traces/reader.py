"""Read a trace, checking every field."""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn

from prism.traces.format import OPTIONAL_COLUMNS, REQUIRED_COLUMNS, TraceError, TraceRequest

MAX_ROWS = 10_000_000
MAX_TOKENS = 100_000_000
MAX_TOKEN_DIGITS = 9
MAX_MODEL_CHARS = 256


def read_trace(path: str | Path, max_rows: int = MAX_ROWS) -> list[TraceRequest]:
    """All requests of a `.csv` or `.csv.gz` file.

    Raises `TraceError` at the first thing wrong, an empty trace included.
    """
    path = Path(path)
    try:
        with _open(path) as stream:
            requests = list(_rows(path, stream, max_rows))
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: is not UTF-8 text: {error}") from error
    if not requests:
        raise TraceError(f"{path}: has no requests")
    return requests


def _open(path: Path) -> IO[str]:
    if path.name.endswith(".gz"):
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _rows(path: Path, stream: IO[str], max_rows: int) -> Iterator[TraceRequest]:
    rows = csv.reader(stream, strict=True)
    try:
        columns = _columns(path, next(rows, []))
        last_s = 0.0
        for number, row in enumerate(rows, start=1):
            if not row:
                continue
            line = rows.line_num
            if number > max_rows:
                raise TraceError(f"{path}, line {line}: more than {max_rows} rows; split the trace")
            request = _Row(path, line, columns, row).request()
            if request.arrival_s < last_s:
                raise TraceError(
                    f"{path}, line {line}: arrival_s {request.arrival_s} is before the row above ({last_s}); "
                    "sort the trace by arrival_s"
                )
            last_s = request.arrival_s
            yield request
    except csv.Error as error:
        raise TraceError(f"{path}, line {rows.line_num}: is not CSV: {error}") from error


def _columns(path: Path, header: list[str]) -> dict[str, int]:
    names = [name.strip() for name in header]
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    if missing:
        raise TraceError(
            f"{path}, line 1: column {missing[0]!r} is missing; "
            f"the header must name {', '.join(REQUIRED_COLUMNS)}"
        )
    for name in names:
        if name not in REQUIRED_COLUMNS + OPTIONAL_COLUMNS:
            known = ", ".join(REQUIRED_COLUMNS + OPTIONAL_COLUMNS)
            raise TraceError(f"{path}, line 1: unknown column {name!r}; known are {known}")
        if names.count(name) > 1:
            raise TraceError(f"{path}, line 1: column {name!r} appears twice")
    return {name: index for index, name in enumerate(names)}


class _Row:
    """One row with its place, for error messages."""

    def __init__(self, path: Path, line: int, columns: dict[str, int], values: list[str]) -> None:
        self._where = f"{path}, line {line}"
        if len(values) != len(columns):
            raise TraceError(f"{self._where}: has {len(values)} fields, the header has {len(columns)}")
        self._values = {name: values[index].strip() for name, index in columns.items()}

    def request(self) -> TraceRequest:
        return TraceRequest(
            arrival_s=self._seconds("arrival_s", zero_ok=True),
            model=self._model(),
            prompt_tokens=self._tokens("prompt_tokens"),
            output_tokens=self._tokens("output_tokens"),
            ttft_slo_s=self._optional_seconds("ttft_slo_s"),
            tpot_slo_s=self._optional_seconds("tpot_slo_s"),
        )

    def _fail(self, field: str, expected: str) -> NoReturn:
        raise TraceError(f"{self._where}: {field} is {self._values[field]!r}; expected {expected}")

    def _model(self) -> str:
        model = self._values["model"]
        if not model or len(model) > MAX_MODEL_CHARS or not model.isprintable():
            self._fail("model", f"a printable name of 1 to {MAX_MODEL_CHARS} characters")
        return model

    def _seconds(self, field: str, *, zero_ok: bool) -> float:
        expected = "a number of seconds, " + ("0 or more" if zero_ok else "more than 0")
        try:
            value = float(self._values[field])
        except ValueError:
            self._fail(field, expected)
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero_ok):
            self._fail(field, expected)
        return value

    def _optional_seconds(self, field: str) -> float | None:
        return self._seconds(field, zero_ok=False) if self._values.get(field) else None

    def _tokens(self, field: str) -> int:
        text = self._values[field]
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_TOKEN_DIGITS else 0
        if not 1 <= value <= MAX_TOKENS:
            self._fail(field, f"a whole number from 1 to {MAX_TOKENS}")
        return value
