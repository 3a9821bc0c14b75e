"""All instances: starts them when told to, watches them, stops them.

It reports phases and decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prism.live.instance import EngineStarter, Instance
from prism.live.readiness import NotReadyError

if TYPE_CHECKING:
    from prism.config import DeviceSettings
    from prism.core.events import Phase
    from prism.live.clock import Clock
    from prism.live.engine_process import EngineProcess

_TERM_S = 12.0  # SGLang takes about 8 s to end after TERM

log = logging.getLogger("prism.engines")

OnPhase = Callable[[Instance, str | None], None]


class Fleet:
    """Instances by model name. Each running one has one task, which alone changes its phase."""

    def __init__(
        self, instances: list[Instance], starter: EngineStarter, clock: Clock, on_phase: OnPhase
    ) -> None:
        self._instances = {instance.name: instance for instance in instances}
        self._starter = starter
        self._clock = clock
        self._on_phase = on_phase
        self._stopping = asyncio.Event()
        # an engine's start is bound by its imports: more at once than cores only makes each later
        self._start_slots = asyncio.Semaphore(max(1, len(os.sched_getaffinity(0))))

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._instances.values())

    def get(self, name: str) -> Instance | None:
        """The instance of that name."""
        return self._instances.get(name)

    def activate(self, name: str, device: DeviceSettings, op_id: str, revision: int) -> None:
        """Begin to make the instance ready on the device; its phases tell how that ends."""
        instance = self._instances[name]
        if self._stopping.is_set():
            self._enter(instance, "failed", op_id, "the service is stopping")
            return
        if revision <= instance.revision or (instance.task is not None and not instance.task.done()):
            log.warning("activate %s (revision %d) is stale; it stays %s", name, revision, instance.phase)
            self._on_phase(instance, op_id)
            return
        instance.revision = revision
        instance.device = device
        self._enter(instance, "loading", op_id)
        instance.task = asyncio.create_task(self._live(instance, device, op_id), name=f"engine {name}")
        instance.task.add_done_callback(_log_bug)

    def url_of(self, name: str) -> str | None:
        """Where requests for the instance go, while it is ready."""
        instance = self._instances.get(name)
        return None if instance is None else instance.url

    async def stop(self, *, at_once: asyncio.Event) -> None:
        """End every engine: TERM, then KILL after a while or when `at_once` is set.

        Returns when all are gone.
        """
        self._stopping.set()
        tasks = [instance.task for instance in self if instance.task is not None and not instance.task.done()]
        if not tasks:
            return
        for instance in self:
            if instance.process is not None:
                instance.process.ask_to_end()
        everything = asyncio.create_task(_wait_all(tasks))
        hurry = asyncio.create_task(at_once.wait())
        await asyncio.wait({everything, hurry}, timeout=_TERM_S, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not everything.done():
            for instance in self:
                if instance.process is not None:
                    instance.process.kill()
        await everything

    # -- one instance's life ---------------------------------------------------------------------------------

    async def _live(self, instance: Instance, device: DeviceSettings, op_id: str) -> None:
        """Start, be ready, end.

        Every way out ends in phase failed (or cold when prism stops) with the process gone.
        """
        process: EngineProcess | None = None
        ready = False
        try:
            async with self._start_slots:
                if self._stopping.is_set():
                    return
                instance.starts += 1
                process = instance.process = await self._starter.start(instance, device)
                if (
                    self._stopping.is_set()
                ):  # stop() came while the process was being made, and could not see it
                    process.kill()
                await self._starter.wait_ready(instance, device, process)
            ready = True
            instance.ready_since_s = self._clock.now_s()
            self._enter(instance, "ready", op_id)
            code = await process.wait()
            detail = f"the engine ended with status {code}: {process.reason()}"
        except (NotReadyError, OSError) as error:
            detail = str(error)
        finally:
            if process is not None and process.exit_code is None:
                await asyncio.shield(process.kill_and_wait())
            instance.process = None
            instance.ready_since_s = None
        if self._stopping.is_set():
            self._enter(instance, "cold", None)
            return
        log.error(
            "model %s failed: %s (log: %s)", instance.name, detail, self._starter.log_path(instance.name)
        )
        self._enter(instance, "failed", None if ready else op_id, detail)

    def _enter(self, instance: Instance, phase: Phase, op_id: str | None, detail: str = "") -> None:
        instance.phase = phase
        instance.detail = detail
        log.info("model %s is %s", instance.name, phase)
        self._on_phase(instance, op_id)


def _log_bug(task: asyncio.Task[None]) -> None:
    """An instance's task handles every failure of its engine; anything else must not vanish."""
    if not task.cancelled() and task.exception() is not None:
        log.error("%s ended unexpectedly", task.get_name(), exc_info=task.exception())


async def _wait_all(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
