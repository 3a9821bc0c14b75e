"""What a scheduler is told once: frozen configuration, sizes in bytes, times in seconds.

These are the core's own shapes. The user's YAML is read and checked elsewhere and turned into these.
"""

from dataclasses import dataclass
from typing import Literal

KvprVariant = Literal["v1", "v3"]


@dataclass(frozen=True, slots=True)
class LocalModel:
    """One model as a device's scheduler sees it.

    `kv_bytes_per_token` is the KV cache one token costs over all layers. `reserve_bytes` stays free for the
    requests an engine already runs, so that admitting one more does not force a retraction.
    `prefill_tokens_per_s` and `overhead_s` seed the service time estimate, which then follows what is
    observed. `kv_output_tokens` is how much output a new request is assumed to keep beyond its prompt (its
    true length is unknown until it ends).
    """

    name: str
    kv_bytes_per_token: int
    prefill_tokens_per_s: float = 2000.0
    overhead_s: float = 0.0
    reserve_bytes: int = 0
    max_running: int = 48
    kv_output_tokens: int = 64


@dataclass(frozen=True, slots=True)
class LocalConfig:
    """Configuration of the scheduler of one device.

    `window_prefill_tokens` bounds prompt tokens handed to all engines of the device and not yet prefilled.
    `late_share` is the share of prefill work that late requests get while on-time ones wait. `max_queued`
    bounds requests waiting here. After an engine refused a request its engine is left alone for
    `refusal_backoff_s`, and `max_attempts` refusals end the request.
    """

    device: str
    models: tuple[LocalModel, ...]
    window_prefill_tokens: int = 2048
    late_share: float = 0.1
    max_queued: int = 1024
    refusal_backoff_s: float = 0.25
    max_attempts: int = 8
    failed_retry_after_s: float = 5.0

    def __post_init__(self) -> None:
        """Raise ValueError for values under which no schedule makes sense."""
        if not 0.0 <= self.late_share <= 1.0:
            raise ValueError(f"late_share of {self.device} is {self.late_share}; it must be in [0, 1]")
        if self.window_prefill_tokens < 1 or self.max_queued < 1 or self.max_attempts < 1:
            raise ValueError(
                f"{self.device}: window_prefill_tokens, max_queued and max_attempts must be at least 1"
            )


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """One model as the global scheduler sees it.

    `device` pins the model; None leaves the choice to KVPR. `floor_bytes` is KV memory the model must always
    be able to get, `weight_bytes` what its weights take out of the same budget (0 where weights live outside
    the budget).
    """

    name: str
    kv_bytes_per_token: int
    ttft_slo_s: float
    tpot_slo_s: float
    device: str | None = None
    floor_bytes: int = 0
    weight_bytes: int = 0
    tp: int = 1


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device: `budget_bytes` is what KV caches (and weights, where counted) may take together."""

    name: str
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class GlobalConfig:
    """Configuration of the placement scheduler.

    `move_threshold` is the relative improvement of the largest KVPR that a move must bring; None never moves.
    `min_residency_s` keeps a model where it was put for at least that long. A model that fails is activated
    again after `activate_retry_s`, at most `max_activate_attempts` times in a row.
    """

    models: tuple[PlacedModel, ...]
    devices: tuple[DeviceSpec, ...]
    variant: KvprVariant = "v1"
    move_threshold: float | None = None
    min_residency_s: float = 30.0
    max_activate_attempts: int = 3
    activate_retry_s: float = 10.0
