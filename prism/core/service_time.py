"""Predicted prefill time of a request, calibrated by what was observed.

Model: a prompt of n tokens takes `overhead_s + n / rate`, one rate per model. Each first token compares the
time since dispatch with the predicted time of everything outstanding on the device at that moment, the
request included: engines of a device share its compute, so the time a request waits for its neighbours is no
sign of a slow model. The rate follows by the ratio of the two, smoothed in the logarithm. This is rough on
purpose; it needs the right order of magnitude, since only comparisons with deadlines depend on it.
"""

from dataclasses import dataclass, field

from prism.core.config import LocalModel

_SMOOTHING = 0.2  # weight of one observation
_RATIO_BOUND = 10.0  # one observation may not claim more than this factor
_DRIFT_BOUND = 100.0  # the rate stays within this factor of its configured start


@dataclass(slots=True)
class ServiceTime:
    """Prefill rates per model, in tokens/s."""

    _models: dict[str, LocalModel] = field(default_factory=dict)
    _rates: dict[str, float] = field(default_factory=dict)

    def configure(self, models: tuple[LocalModel, ...]) -> None:
        """Take the models' start values; what was learned about a model that stays is kept."""
        self._models = {model.name: model for model in models}
        self._rates = {m.name: self._rates.get(m.name, m.prefill_tokens_per_s) for m in models}

    def rate_tokens_per_s(self, model: str) -> float:
        """The present estimate; 0.0 for a model no longer configured."""
        return self._rates.get(model, 0.0)

    def work_s(self, model: str, tokens: int) -> float:
        """Predicted time to prefill `tokens`, alone on the device; 0.0 for a model no longer configured."""
        spec = self._models.get(model)
        if spec is None:
            return 0.0
        return spec.overhead_s + tokens / self._rates[model]

    def observe(self, model: str, predicted_s: float, actual_s: float) -> None:
        """A first token came `actual_s` after dispatch; `predicted_s` was the work outstanding then."""
        spec = self._models.get(model)
        if spec is None or predicted_s <= 0.0 or actual_s <= 0.0:
            return
        ratio = min(_RATIO_BOUND, max(1.0 / _RATIO_BOUND, predicted_s / actual_s))
        start = spec.prefill_tokens_per_s
        rate = self._rates[model] * ratio**_SMOOTHING
        self._rates[model] = min(start * _DRIFT_BOUND, max(start / _DRIFT_BOUND, rate))
