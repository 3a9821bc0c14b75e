"""Where models go: each to the device of least resulting KVPR, heaviest weighted rate first.

Prism, arXiv 2505.04021.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prism.core.config import DeviceSpec, PlacedModel
from prism.core.kvpr import kvpr


@dataclass(slots=True)
class DeviceLoad:
    """One device with the models put on it so far. Bytes are per tensor parallel rank."""

    spec: DeviceSpec
    order: int
    weighted_rate: float = 0.0
    weight_bytes: int = 0
    floor_bytes: int = 0
    models: dict[str, None] = field(default_factory=dict)

    def put(self, model: PlacedModel, weighted_rate: float) -> None:
        """Add a model."""
        self.models[model.name] = None
        self.weighted_rate += weighted_rate
        self.weight_bytes += model.weight_bytes // model.tp
        self.floor_bytes += model.floor_bytes // model.tp

    def take(self, model: PlacedModel, weighted_rate: float) -> None:
        """Remove a model."""
        del self.models[model.name]
        self.weighted_rate -= weighted_rate
        self.weight_bytes -= model.weight_bytes // model.tp
        self.floor_bytes -= model.floor_bytes // model.tp

    def short_bytes(self, model: PlacedModel) -> int:
        """How many bytes are missing to hold the model too; 0 or less: it fits.

        Everybody's floor stays guaranteed, and at least a byte is left for KV.
        """
        weights = self.weight_bytes + model.weight_bytes // model.tp
        floors = self.floor_bytes + model.floor_bytes // model.tp
        return weights + max(floors, 1) - self.spec.budget_bytes

    def kvpr(self) -> float:
        """Pressure as it is."""
        return kvpr(self.weighted_rate, self.spec.budget_bytes - self.weight_bytes)

    def kvpr_with(self, model: PlacedModel, weighted_rate: float) -> float:
        """Pressure with the model added."""
        left = self.spec.budget_bytes - self.weight_bytes - model.weight_bytes // model.tp
        return kvpr(self.weighted_rate + weighted_rate, left)


@dataclass(frozen=True, slots=True)
class Placement:
    """`assigned`: model -> its tp devices, the deciding one first. `unplaced`: model -> what is missing."""

    assigned: dict[str, tuple[str, ...]]
    unplaced: dict[str, str]


def place(
    models: Iterable[PlacedModel], rates: Mapping[str, float], loads: Mapping[str, DeviceLoad]
) -> Placement:
    """Put every model on `tp` distinct devices of least resulting KVPR; `loads` is updated.

    Ties, as when nothing has traffic yet, go to the device with most memory left after floors, then to the
    first.
    """
    assigned: dict[str, tuple[str, ...]] = {}
    unplaced: dict[str, str] = {}
    for model in sorted(models, key=lambda m: -rates.get(m.name, 0.0)):  # stable: ties by order given
        rate = rates.get(model.name, 0.0)
        candidates = [d for d in loads.values() if model.device is None or d.spec.name == model.device]
        fitting = [d for d in candidates if d.short_bytes(model) <= 0]
        if len(fitting) < model.tp:
            unplaced[model.name] = _why_unplaced(model, candidates)
            continue
        fitting.sort(key=lambda d: (d.kvpr_with(model, rate), d.short_bytes(model), d.order))
        chosen = fitting[: model.tp]
        for device in chosen:
            device.put(model, rate)
        assigned[model.name] = tuple(device.spec.name for device in chosen)
    return Placement(assigned, unplaced)


def _why_unplaced(model: PlacedModel, candidates: list[DeviceLoad]) -> str:
    if not candidates:
        wanted = f"device {model.device!r}" if model.device is not None else "any device"
        return f"{wanted} is not available"
    if len(candidates) < model.tp:
        return f"needs {model.tp} devices for its tensor parallel ranks, {len(candidates)} available"
    best = min(candidates, key=lambda d: (d.short_bytes(model), d.order))
    needed = best.spec.budget_bytes + best.short_bytes(model)
    return (
        f"does not fit: {best.spec.name} comes closest and lacks {best.short_bytes(model)} bytes "
        f"(budget {best.spec.budget_bytes}; {needed} would hold it with the floors of its neighbours)"
    )


def best_move(
    movable: Iterable[PlacedModel],
    rates: Mapping[str, float],
    loads: Mapping[str, DeviceLoad],
    threshold: float,
) -> tuple[str, str] | None:
    """The single move (model, target device) that lowers the largest KVPR most.

    None unless it does so by more than `threshold` of it. Models of one device only; ties by order of models
    and devices.
    """
    now = max((device.kvpr() for device in loads.values()), default=0.0)
    best: tuple[float, str, str] | None = None
    for model in movable:
        rate = rates.get(model.name, 0.0)
        source = next((d for d in loads.values() if model.name in d.models), None)
        if source is None or model.tp != 1:
            continue
        for target in loads.values():
            if target is source or target.short_bytes(model) > 0:
                continue
            after = _largest_after(model, rate, source, target, loads)
            if best is None or after < best[0]:
                best = (after, model.name, target.spec.name)
    if best is None or now <= 0.0 or not best[0] < now * (1.0 - threshold):
        return None
    return best[1], best[2]


def _largest_after(
    model: PlacedModel, rate: float, source: DeviceLoad, target: DeviceLoad, loads: Mapping[str, DeviceLoad]
) -> float:
    source.take(model, rate)
    target.put(model, rate)
    largest = max(device.kvpr() for device in loads.values())
    target.take(model, rate)
    source.put(model, rate)
    return largest
