"""From the user's configuration to the schedulers' own shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prism.core.config import DeviceSpec, GlobalConfig, LocalConfig, LocalModel, PlacedModel

if TYPE_CHECKING:
    from prism.config import Config
    from prism.config.budget import PlannedModel


def local_config(config: Config, device_name: str, planned: list[PlannedModel]) -> LocalConfig:
    """Configuration of one device's scheduler. It knows every usable model: any may be placed here."""
    device = config.device(device_name)
    return LocalConfig(
        device=device.name,
        models=tuple(_local_model(model) for model in planned if model.plan is not None),
        window_prefill_tokens=device.window_prefill_tokens,
        late_share=device.late_share,
        max_queued=config.server.max_queued_requests,
    )


def global_config(config: Config, planned: list[PlannedModel]) -> GlobalConfig:
    """Configuration of the placement scheduler, without models whose folders are unusable."""
    return GlobalConfig(
        models=tuple(_placed_model(model) for model in planned if model.plan is not None),
        devices=tuple(DeviceSpec(device.name, device.kv_budget_bytes) for device in config.devices),
    )


def _local_model(model: PlannedModel) -> LocalModel:
    if model.plan is None:
        raise ValueError(f"model {model.settings.name} has no KV plan")
    return LocalModel(
        name=model.settings.name,
        kv_bytes_per_token=model.plan.facts.kv_bytes_per_token,
        # one page over all layers: enough for the running batch to take its next rows
        reserve_bytes=model.plan.page_set_bytes if model.settings.engine.kvcached else 0,
        max_running=model.settings.engine.max_running_requests,
    )


def _placed_model(model: PlannedModel) -> PlacedModel:
    if model.plan is None:
        raise ValueError(f"model {model.settings.name} has no KV plan")
    return PlacedModel(
        name=model.settings.name,
        kv_bytes_per_token=model.plan.facts.kv_bytes_per_token,
        ttft_slo_s=model.settings.slo.ttft_s,
        tpot_slo_s=model.settings.slo.tpot_s,
        device=model.settings.device,
        floor_bytes=model.floor_bytes,
    )
