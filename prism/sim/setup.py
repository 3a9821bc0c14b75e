"""What is simulated: the schedulers' own configurations, the engines' limits, and their speeds."""

from dataclasses import dataclass, field

from prism.core.config import GlobalConfig, LocalConfig
from prism.sim.profile import Profile


@dataclass(frozen=True, slots=True)
class SimModel:
    """Limits of a model's engine: `max_total_tokens` rows of KV, `limit_bytes` of the device's budget."""

    name: str
    max_total_tokens: int
    max_running: int
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SimSetup:
    """One simulation. `assumed_max_tokens` is what arrivals state; the true length stays with the engine.

    Models are ready at time 0 where `warm`; else their load times pass first, and requests are held
    meanwhile.
    """

    placement: GlobalConfig
    devices: tuple[LocalConfig, ...]
    models: tuple[SimModel, ...]
    profile: Profile = field(default_factory=Profile)
    report_every_s: float = 0.5
    snapshot_every_s: float = 5.0
    rate_window_s: float = 60.0
    request_timeout_s: float = 600.0
    assumed_max_tokens: int = 4096
    warm: bool = True

    def __post_init__(self) -> None:
        """Raise ValueError for what the simulator cannot do or would misreport."""
        if self.placement.move_threshold is not None:
            raise ValueError("moves between devices are not simulated yet; set move_threshold to null")
        if any(model.tp != 1 for model in self.placement.models):
            raise ValueError("tensor parallel models are not simulated yet; set tp to 1")
        names = {model.name for model in self.models}
        missing = sorted({model.name for model in self.placement.models} - names)
        if missing:
            raise ValueError(f"model {missing[0]!r} is placed, but its engine limits are not given")
        if {device.name for device in self.placement.devices} != {device.device for device in self.devices}:
            raise ValueError("every device needs one local configuration")
