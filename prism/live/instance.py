"""One engine instance of a model: its place, phase and processes. Started and stopped by the fleet."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prism.live.engine_process import EngineProcess, free_port, start_engine
from prism.live.launch import plan_launch
from prism.live.readiness import NotReadyError, check_registered, wait_http

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import aiohttp

    from prism.config import DeviceSettings
    from prism.config.budget import PlannedModel
    from prism.core.events import Phase


@dataclass(slots=True)
class Instance:
    """A model's instance; its name is the model's. `detail` says why, when the phase is failed."""

    planned: PlannedModel
    index: int
    device: DeviceSettings | None = None
    phase: Phase = "cold"
    detail: str = ""
    revision: int = 0
    starts: int = 0
    ready_since_s: float | None = None
    process: EngineProcess | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Name of instance and model."""
        return self.planned.settings.name

    @property
    def url(self) -> str | None:
        """Where requests go, while the engine is ready."""
        return self.process.url if self.process is not None and self.phase == "ready" else None


@dataclass(frozen=True, slots=True)
class EngineStarter:
    """Starts an instance's engine and waits until it may be routed to."""

    session: aiohttp.ClientSession
    engine_dir: Callable[[int], Path]
    ledger_path: Callable[[str], Path]
    log_path: Callable[[str], Path]

    async def start(self, instance: Instance, device: DeviceSettings) -> EngineProcess:
        """The started process, not yet ready."""
        port = free_port()
        folder = self.engine_dir(instance.index)
        launch = plan_launch(
            model=instance.planned.settings,
            device=device,
            port=port,
            tmp_dir=folder / "tmp",
            ledger_path=self.ledger_path(device.name),
            floor_bytes=instance.planned.floor_bytes,
            inherited=os.environ,
        )
        log_path = self.log_path(instance.name)
        return await start_engine(launch, url=f"http://127.0.0.1:{port}", folder=folder, log_path=log_path)

    async def wait_ready(self, instance: Instance, device: DeviceSettings, process: EngineProcess) -> None:
        """Until the engine answers and is registered; raises `NotReadyError` with the reason."""
        engine = instance.planned.settings.engine
        answers = asyncio.create_task(wait_http(process.url, self.session))
        gone = asyncio.create_task(process.wait())
        try:
            await asyncio.wait(
                {answers, gone}, timeout=engine.start_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if gone.done():
                raise NotReadyError(
                    f"the engine ended with status {gone.result()} while starting: {process.reason()}"
                )
            if not answers.done():
                raise NotReadyError(
                    f"the engine was not up after {engine.start_timeout_s:g} s (engine.start_timeout_s)"
                )
            if engine.kvcached:
                await check_registered(self.ledger_path(device.name), instance.name, process.pids)
        finally:
            answers.cancel()
            gone.cancel()
