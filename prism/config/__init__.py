"""Prism's one YAML file: strict shapes, readable refusals, and what model folders say about KV memory."""

from prism.config.errors import ConfigError, Problem
from prism.config.load import load_config, parse_config
from prism.config.schema import (
    Config,
    DeviceSettings,
    EngineSettings,
    KvSettings,
    ModelSettings,
    ServerSettings,
    SloSettings,
)

__all__ = [
    "Config",
    "ConfigError",
    "DeviceSettings",
    "EngineSettings",
    "KvSettings",
    "ModelSettings",
    "Problem",
    "ServerSettings",
    "SloSettings",
    "load_config",
    "parse_config",
]
