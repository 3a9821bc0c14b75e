"""Do the floors of the configured models fit the devices' budgets? Asked before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prism.config.errors import ConfigError, Problem
from prism.config.load import load_config
from prism.config.model_facts import KvPlan, ModelFolderError, device_kind_of, plan_kv, read_model_facts
from prism.config.sizes import approximate_size

if TYPE_CHECKING:
    from prism.config.schema import Config, ModelSettings


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A configured model with its KV plan, or with the reason why it cannot be served."""

    settings: ModelSettings
    plan: KvPlan | None
    reason: str | None

    @property
    def floor_bytes(self) -> int:
        """The floor that prism sets for the engine: the configured one or the plan's."""
        if not self.settings.engine.kvcached:
            return 0
        if self.settings.kv.floor_bytes is not None:
            return self.settings.kv.floor_bytes
        return self.plan.floor_bytes if self.plan is not None else 0


def load_planned(path: Path) -> tuple[Config, list[PlannedModel]]:
    """Read, check and plan in one go; raises `ConfigError`. Models with unusable folders are no error."""
    config = load_config(path)
    planned = plan_models(config)
    problems = check_budgets(config, planned)
    if problems:
        raise ConfigError(str(path), problems)
    return config, planned


def plan_models(config: Config) -> list[PlannedModel]:
    """One entry per configured model, in order; a model whose folder is unusable carries the reason."""
    planned: list[PlannedModel] = []
    for model in config.models:
        try:
            facts = read_model_facts(Path(model.path), model.engine)
            plan = plan_kv(facts, model.engine, device_kind_of(config, model.device))
        except ModelFolderError as error:
            planned.append(PlannedModel(settings=model, plan=None, reason=str(error)))
        else:
            planned.append(PlannedModel(settings=model, plan=plan, reason=None))
    return planned


def check_budgets(config: Config, planned: list[PlannedModel]) -> list[Problem]:
    """Problems with budgets and limits that no schedule could solve.

    Each names the smallest value that works.
    """
    usable = [model for model in planned if model.plan is not None and model.settings.engine.kvcached]
    problems = [problem for model in usable for problem in _check_limit(config, model)]
    for index, device in enumerate(config.devices):
        alone = len(config.devices) == 1
        here = [
            m for m in usable if m.settings.device == device.name or (alone and m.settings.device is None)
        ]
        need = sum(model.floor_bytes for model in here)
        if need > device.kv_budget_bytes:
            problems.append(
                _too_small(f"devices[{index}].kv_budget_bytes", device.kv_budget_bytes, need, here)
            )
    if len(config.devices) > 1 and not problems:
        problems += _check_unplaced(config, usable)
    return problems


def _check_limit(config: Config, model: PlannedModel) -> list[Problem]:
    limit = model.settings.kv.limit_bytes
    if limit is None or limit >= model.floor_bytes:
        return []
    index = config.models.index(model.settings)
    message = f"{limit} is less than the model's floor; the smallest that works is {model.floor_bytes}"
    return [
        Problem(
            f"models[{index}].kv.limit_bytes", message + " (or lower kv.floor_bytes or engine.context_length)"
        )
    ]


def _check_unplaced(config: Config, usable: list[PlannedModel]) -> list[Problem]:
    """Necessary conditions only: the placement itself is the global scheduler's work."""
    left = {device.name: device.kv_budget_bytes for device in config.devices}
    for model in usable:
        if model.settings.device is not None:
            left[model.settings.device] -= model.floor_bytes
    unplaced = [model for model in usable if model.settings.device is None]
    total = sum(model.floor_bytes for model in unplaced)
    if total > sum(left.values()):
        return [_too_small("devices", sum(left.values()), total, unplaced)]
    widest = max(left.values())
    return [
        Problem(
            f"models[{config.models.index(model.settings)}].kv.floor_bytes",
            f"{model.floor_bytes} ({approximate_size(model.floor_bytes)}) is more than any device has "
            f"left ({widest}); "
            f"the smallest budget that works is {model.floor_bytes} free bytes on one device",
        )
        for model in unplaced
        if model.floor_bytes > widest
    ]


def _too_small(path: str, budget: int, need: int, models: list[PlannedModel]) -> Problem:
    floors = ", ".join(f"{model.settings.name} {approximate_size(model.floor_bytes)}" for model in models)
    return Problem(
        path,
        f"{budget} ({approximate_size(budget)}) cannot hold the floors of its models ({floors}); the "
        f"smallest that works is {need} ({approximate_size(need)}). A floor is padding plus one request of "
        "maximal length: "
        "raise the budget, or lower engine.context_length or kv.floor_bytes",
    )
