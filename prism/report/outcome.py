"""How one request ended, and what was asked of it."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "failed", "refused", "timeout"]


@dataclass(frozen=True, slots=True)
class Slo:
    """Objectives of a model, in seconds, both more than 0."""

    ttft_s: float
    tpot_s: float

    def __post_init__(self) -> None:
        """Raise ValueError for an objective nothing could meet."""
        if not (self.ttft_s > 0 and self.tpot_s > 0):
            raise ValueError(f"SLO ttft_s {self.ttft_s} and tpot_s {self.tpot_s} must be more than 0")


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """One arrival and its end; all times in seconds on one clock."""

    request_id: str
    model: str
    arrival_s: float
    first_token_s: float | None
    end_s: float | None
    prompt_tokens: int
    output_tokens: int
    status: Status
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token; of an answer without any token, to its end. None when not served."""
        if self.status != "ok":
            return None
        seen_s = self.end_s if self.first_token_s is None else self.first_token_s
        return None if seen_s is None else seen_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """(end-to-end - TTFT) / (output tokens - 1). None when not served and for fewer than two tokens."""
        if self.status != "ok" or self.first_token_s is None or self.end_s is None or self.output_tokens <= 1:
            return None
        return (self.end_s - self.first_token_s) / (self.output_tokens - 1)

    def meets_ttft(self, slo: Slo) -> bool:
        """Served, and its first token in time."""
        return self.ttft_s is not None and self.ttft_s <= slo.ttft_s

    def meets_tpot(self, slo: Slo) -> bool:
        """Served, and its tokens fast enough; one token alone has no pace to miss."""
        return self.status == "ok" and (self.tpot_s is None or self.tpot_s <= slo.tpot_s)
