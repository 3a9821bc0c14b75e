"""Prometheus metrics of the service, in a registry of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

if TYPE_CHECKING:
    from prism.core.events import Phase
    from prism.live.live_request import LiveRequest

Outcome = Literal["ok", "failed", "rejected", "refused", "timeout", "cancelled"]

CONTENT_TYPE = CONTENT_TYPE_LATEST
_TTFT_BUCKETS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_TPOT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
_PHASES: tuple[Phase, ...] = (
    "cold",
    "loading",
    "ready",
    "draining",
    "drained",
    "parking",
    "parked",
    "moving",
    "failed",
)


class Metrics:
    """What /metrics shows."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "prism_requests", "Requests that ended.", ["model", "outcome"], registry=self._registry
        )
        self._output_tokens = Counter(
            "prism_output_tokens", "Tokens that engines produced.", ["model"], registry=self._registry
        )
        self._ttft_s = Histogram(
            "prism_ttft_seconds",
            "Arrival to first content token, of streamed requests.",
            ["model"],
            buckets=_TTFT_BUCKETS_S,
            registry=self._registry,
        )
        self._tpot_s = Histogram(
            "prism_tpot_seconds",
            "Mean time per output token after the first, of streamed requests.",
            ["model"],
            buckets=_TPOT_BUCKETS_S,
            registry=self._registry,
        )
        self._phase = Gauge(
            "prism_model_phase", "1 for the phase a model is in.", ["model", "phase"], registry=self._registry
        )
        self._requests_now = Gauge(
            "prism_requests_now", "Requests held now.", ["model", "state"], registry=self._registry
        )
        self._kv_bytes = Gauge(
            "prism_kv_used_bytes",
            "KV memory credited to a model's engine.",
            ["device", "model"],
            registry=self._registry,
        )
        self._budget_bytes = Gauge(
            "prism_kv_budget_bytes", "KV memory budget of a device.", ["device"], registry=self._registry
        )

    def ended(self, request: LiveRequest, outcome: Outcome, now_s: float) -> None:
        """A request ended at `now_s`."""
        model = request.api.model
        self._requests.labels(model, outcome).inc()
        self._output_tokens.labels(model).inc(request.output_tokens)
        if request.first_token_s is not None:
            self._ttft_s.labels(model).observe(request.first_token_s - request.arrival_s)
            if outcome == "ok" and request.output_tokens > 1:
                self._tpot_s.labels(model).observe(
                    (now_s - request.first_token_s) / (request.output_tokens - 1)
                )

    def phase(self, model: str, phase: Phase) -> None:
        """A model entered a phase."""
        for other in _PHASES:
            self._phase.labels(model, other).set(1 if other == phase else 0)

    def requests_now(self, model: str, waiting: int, running: int) -> None:
        """Requests of a model held now."""
        self._requests_now.labels(model, "waiting").set(waiting)
        self._requests_now.labels(model, "running").set(running)

    def budget(self, device: str, budget_bytes: int) -> None:
        """A device's budget."""
        self._budget_bytes.labels(device).set(budget_bytes)

    def kv_used(self, device: str, model: str, used_bytes: int) -> None:
        """A model's credited KV memory."""
        self._kv_bytes.labels(device, model).set(used_bytes)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)
