"""Write a trace that the reader reads back equal, with equal bytes for equal requests."""

import csv
import gzip
import io
from collections.abc import Sequence
from pathlib import Path

from prism.traces.format import OPTIONAL_COLUMNS, REQUIRED_COLUMNS, TraceRequest


def write_trace(path: str | Path, requests: Sequence[TraceRequest]) -> None:
    """Write `.csv` or, by the name's ending, `.csv.gz`.

    Optional columns appear only where some request has them.
    """
    path = Path(path)
    text = render_trace(requests).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.name.endswith(".gz") else text)


def render_trace(requests: Sequence[TraceRequest]) -> str:
    """The trace as CSV text."""
    used = [name for name in OPTIONAL_COLUMNS if any(getattr(r, name) is not None for r in requests)]
    columns = [*REQUIRED_COLUMNS, *used]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for request in requests:
        values = [getattr(request, name) for name in columns]
        writer.writerow(["" if value is None else value for value in values])
    return out.getvalue()
