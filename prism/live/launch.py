"""The command line and environment of one SGLang engine. Pure: nothing is started here."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from prism.config import DeviceSettings, ModelSettings

_INHERITED_PREFIXES = ("KVCACHED_", "SGLANG_")


@dataclass(frozen=True, slots=True)
class Launch:
    """What to execute and with which environment."""

    command: tuple[str, ...]
    environment: dict[str, str]


def plan_launch(
    *,
    model: ModelSettings,
    device: DeviceSettings,
    port: int,
    tmp_dir: Path,
    ledger_path: Path,
    floor_bytes: int,
    inherited: Mapping[str, str],
) -> Launch:
    """The launch of `model` on `device`.

    Settings of other engines in `inherited` (KVCACHED_*, SGLANG_*) are dropped.
    """
    environment = {k: v for k, v in inherited.items() if not k.startswith(_INHERITED_PREFIXES)}
    environment |= {
        "HF_HUB_OFFLINE": "1",
        # polling /health must not be a generation request: it would be load, and wake a parked engine
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(tmp_dir),
    }
    if device.kind == "host":
        environment |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
    else:
        environment["CUDA_VISIBLE_DEVICES"] = str(device.index)
    environment |= _kv_environment(model, ledger_path, floor_bytes)
    environment |= model.engine.env
    return Launch(command=(sys.executable, *_arguments(model, device, port)), environment=environment)


def _arguments(model: ModelSettings, device: DeviceSettings, port: int) -> list[str]:
    engine = model.engine
    arguments = ["-m", "sglang.launch_server", "--model-path", model.path, "--served-model-name", model.name]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--dtype", engine.dtype]
    if device.kind == "host":
        arguments += ["--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule"]
    else:
        arguments += ["--device", "cuda"]
    arguments += ["--max-total-tokens", str(engine.max_total_tokens)]
    arguments += ["--max-running-requests", str(engine.max_running_requests)]
    if engine.context_length is not None:
        arguments += ["--context-length", str(engine.context_length)]
    # --sleep-on-idle: an idle engine would otherwise spin on a whole core
    arguments += ["--sleep-on-idle", "--enable-metrics", "--skip-server-warmup"]
    # one log line per poll of ours would bury everything else
    return [*arguments, "--log-level-http", "warning", *engine.args]


def _kv_environment(model: ModelSettings, ledger_path: Path, floor_bytes: int) -> dict[str, str]:
    if not model.engine.kvcached:
        return {}
    environment = {
        "KVCACHED_ENABLE": "1",
        "KVCACHED_LEDGER": str(ledger_path),
        "KVCACHED_NAME": model.name,
        "KVCACHED_FLOOR_BYTES": str(floor_bytes),
        "KVCACHED_PRIORITY": str(model.kv.priority),
    }
    if model.kv.limit_bytes is not None:
        environment["KVCACHED_LIMIT_BYTES"] = str(model.kv.limit_bytes)
    return environment
