"""The trace format: CSV, plain or gzip, one request per row, in order of arrival.

| column | | |
|---|---|---|
| arrival_s | required | seconds from the start of the trace, never decreasing |
| model | required | name of the model asked for |
| prompt_tokens | required | at least 1 |
| output_tokens | required | at least 1; known only to whoever replays, never to a policy |
| ttft_slo_s, tpot_slo_s | optional | this request's objectives in seconds; empty: the model's own |
"""

from dataclasses import dataclass

REQUIRED_COLUMNS = ("arrival_s", "model", "prompt_tokens", "output_tokens")
OPTIONAL_COLUMNS = ("ttft_slo_s", "tpot_slo_s")


class TraceError(ValueError):
    """A trace cannot be read; the message names file, line, field and value."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One row of a trace."""

    arrival_s: float
    model: str
    prompt_tokens: int
    output_tokens: int
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
