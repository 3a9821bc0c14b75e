"""The shape of prism's configuration. Every key has a description; unknown keys are errors."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from prism.config.sizes import SIZE_PATTERN, format_size, parse_size

MAX_NAME_BYTES = 47  # a ledger slot holds 47 bytes of UTF-8
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._/@+-]*$")
_OUR_ENGINE_FLAGS = {
    "--model-path",
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--device",
    "--max-total-tokens",
    "--max-running-requests",
    "--context-length",
    "--dtype",
    "--tp",
    "--tp-size",
    "--tensor-parallel-size",
}
_OUR_ENGINE_ENV = ("KVCACHED_", "TMPDIR", "CUDA_VISIBLE_DEVICES")


def _check_name(name: str) -> str:
    if not _NAME.match(name):
        raise ValueError("use letters, digits and any of . _ / @ + - and start with a letter or digit")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"has {len(name.encode())} bytes; use at most {MAX_NAME_BYTES}")
    return name


def _check_device_name(name: str) -> str:
    if "/" in _check_name(name):
        raise ValueError("must not contain / (the device's ledger file is named after it)")
    return name


def _check_engine_arg(arg: str) -> str:
    flag = arg.partition("=")[0]
    if flag in _OUR_ENGINE_FLAGS:
        raise ValueError("is set by prism itself; remove it here and use the key of that name")
    return arg


def _check_env_name(name: str) -> str:
    if not re.match(r"^[A-Za-z_][A-Za-z0-9_]*$", name):
        raise ValueError("is no name of an environment variable")
    if name.startswith(_OUR_ENGINE_ENV):
        raise ValueError("is set by prism itself; remove it here")
    return name


Size = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(ge=0),
    PlainSerializer(format_size, return_type=str),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": SIZE_PATTERN}]}
    ),
]
PositiveSize = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(gt=0),
    PlainSerializer(format_size, return_type=str),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": SIZE_PATTERN}]}
    ),
]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]
ModelName = Annotated[str, AfterValidator(_check_name)]
DeviceName = Annotated[str, AfterValidator(_check_device_name)]
EngineArg = Annotated[str, AfterValidator(_check_engine_arg)]
EnvName = Annotated[str, AfterValidator(_check_env_name)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=True)


class ServerSettings(_Section):
    """The HTTP endpoint."""

    host: str = Field(
        default="127.0.0.1", min_length=1, description="Address to listen on; loopback unless you mean it."
    )
    port: int = Field(
        default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one and prints it."
    )
    api_key_file: str | None = Field(
        default=None,
        description="File holding one key per line; when set, /v1 routes want `Authorization: Bearer KEY`.",
    )
    drain_s: float = Field(
        default=10.0,
        ge=0,
        le=600,
        strict=False,
        description="After the first signal, how long running requests may go on.",
    )
    request_timeout_s: Seconds = Field(
        default=600.0, le=86400, description="A request is ended after this long, waiting included."
    )
    max_body_bytes: PositiveSize = Field(
        default=4 * 2**20, description="Larger request bodies are answered with 413."
    )
    max_queued_requests: int = Field(
        default=1024,
        ge=1,
        le=100_000,
        description="Requests waiting per device; more are answered with 429.",
    )


class DeviceSettings(_Section):
    """One device and the KV memory that all engines on it share."""

    name: DeviceName = Field(
        default="host0", description="Name used in `models[].device`, metrics and the event log."
    )
    kind: Literal["host", "cuda"] = Field(
        default="host", description="host: CPU engines over host memory. cuda: a GPU."
    )
    index: int = Field(default=0, ge=0, le=255, description="Which GPU (cuda only).")
    kv_budget_bytes: PositiveSize = Field(
        default=256 * 2**20, description="KV memory shared by all engines on the device."
    )
    window_prefill_tokens: int = Field(
        default=2048, ge=1, description="Prompt tokens handed to engines and not yet prefilled, at most."
    )
    late_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        strict=False,
        description="Share of prefill work late requests get while on-time ones wait.",
    )


class SloSettings(_Section):
    """Latency objectives of a model."""

    ttft_s: Seconds = Field(default=2.0, description="Arrival at prism to first content token.")
    tpot_s: Seconds = Field(default=0.2, description="Mean time per output token after the first.")


class KvSettings(_Section):
    """A model's part of its device's KV budget."""

    floor_bytes: Size | None = Field(
        default=None, description="Always obtainable by this model; null: padding and one longest request."
    )
    limit_bytes: PositiveSize | None = Field(
        default=None, description="Never more than this; null: up to the budget."
    )
    priority: int = Field(
        default=0, ge=-1000, le=1000, description="Higher keeps its memory longer under pressure."
    )


class EngineSettings(_Section):
    """How the model's SGLang engine is started."""

    kvcached: bool = Field(
        default=True,
        description="Elastic KV memory; false starts stock SGLang, whose KV memory is outside every budget.",
    )
    max_total_tokens: int = Field(
        default=16384, ge=16, description="KV rows the engine reserves addresses for."
    )
    context_length: int | None = Field(
        default=None, ge=16, description="Longest request in tokens; null: the model's own."
    )
    max_running_requests: int = Field(
        default=16, ge=1, le=4096, description="Requests in one batch, at most."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto", description="Weights and KV cache."
    )
    start_timeout_s: Seconds = Field(
        default=300.0, le=7200, description="A start that takes longer has failed."
    )
    args: list[EngineArg] = Field(
        default=[], max_length=64, description="More arguments for sglang.launch_server."
    )
    env: dict[EnvName, str] = Field(
        default={}, max_length=64, description="More environment variables for the engine."
    )


class ModelSettings(_Section):
    """One model to serve."""

    name: ModelName = Field(description="Name in the API's `model` field and in metrics.")
    path: str = Field(min_length=1, description="Folder with config.json, tokenizer and safetensors.")
    device: DeviceName | None = Field(default=None, description="Device to run on; null: placed by KVPR.")
    slo: SloSettings = Field(default=SloSettings(), description="Latency objectives.")
    kv: KvSettings = Field(default=KvSettings(), description="Share of the KV budget.")
    engine: EngineSettings = Field(default=EngineSettings(), description="Engine start.")


class Config(_Section):
    """Configuration of `prism serve`."""

    server: ServerSettings = Field(default=ServerSettings(), description="The HTTP endpoint.")
    devices: list[DeviceSettings] = Field(
        default=[DeviceSettings()], min_length=1, max_length=64, description="Devices to serve from."
    )
    models: list[ModelSettings] = Field(min_length=1, max_length=256, description="Models to serve.")
    runtime_dir: str | None = Field(
        default=None,
        min_length=1,
        description="Ledgers, locks, engines' temporary folders; null: in $XDG_RUNTIME_DIR or <tmp>.",
    )
    log_dir: str | None = Field(
        default=None,
        min_length=1,
        description="Keep the engines' logs here; null: beneath runtime_dir, removed at the end.",
    )
    event_log: str | None = Field(
        default=None,
        min_length=1,
        description="Write every scheduler event and command here (JSON lines; no prompts).",
    )

    def device(self, name: str) -> DeviceSettings:
        """The device of that name; KeyError when there is none."""
        for device in self.devices:
            if device.name == name:
                return device
        raise KeyError(name)


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the configuration file."""
    schema = Config.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
