"""The running service: every part of the live shell put together, started and ended in order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from prism.config.scheduling import global_config, local_config
from prism.core import GlobalScheduler, LocalScheduler
from prism.core.events import ModelState
from prism.core.mailbox import GLOBAL, local_name
from prism.live.clock import Clock
from prism.live.decider import Decider, Scheduler
from prism.live.event_log import EventLog
from prism.live.exchange import ExchangeContext
from prism.live.executor import Executor
from prism.live.fleet import Fleet
from prism.live.instance import EngineStarter, Instance
from prism.live.kv_view import KvView
from prism.live.live_request import LiveRequest, RequestTable
from prism.live.metrics import Metrics
from prism.live.observer import Observer
from prism.live.openai_errors import ApiError
from prism.live.prompt_tokens import PromptCounter
from prism.live.request_limits import check_vocabulary
from prism.live.upstream import Upstream

if TYPE_CHECKING:
    from prism.config import Config
    from prism.config.budget import PlannedModel
    from prism.core.codec import SchedulerConfig
    from prism.live.api_request import ApiRequest
    from prism.live.runtime_dir import RuntimeDir

_ABORT_S = 5.0

log = logging.getLogger("prism.service")


class Service:
    """Owns every part; holds no policy and no arithmetic."""

    def __init__(self, config: Config, planned: list[PlannedModel], runtime: RuntimeDir) -> None:
        """Make all parts; call within the running loop. Raises OSError or the ledger's errors."""
        self.config = config
        self.clock = Clock()
        self.metrics = Metrics()
        self.draining = False
        self._ids = itertools.count(1)
        self.table = RequestTable(config.server.max_queued_requests + _running_limit(config))
        self.views = {d.name: KvView(runtime.ledger_path(d.name), d.kv_budget_bytes) for d in config.devices}
        configs, schedulers = _schedulers(config, planned)
        self._event_log = EventLog(Path(config.event_log), configs) if config.event_log else None
        self.decider = Decider(schedulers, self.clock, self._event_log)
        self._global = schedulers[GLOBAL]
        self._session = aiohttp.ClientSession(trust_env=False)
        self.upstream = Upstream()
        self.fleet = Fleet(_instances(planned), self._starter(runtime), self.clock, self._on_phase)
        self.executor = Executor(
            config=config, decider=self.decider, table=self.table, fleet=self.fleet, clock=self.clock
        )
        self.decider.connect(self.executor.execute)
        self.observer = Observer(
            fleet=self.fleet,
            table=self.table,
            decider=self.decider,
            views=self.views,
            metrics=self.metrics,
            session=self._session,
        )
        self._counters = {m.settings.name: PromptCounter(Path(m.settings.path)) for m in planned if m.plan}
        self._observing: asyncio.Task[None] | None = None
        self.exchanges = ExchangeContext(
            decider=self.decider,
            table=self.table,
            upstream=self.upstream,
            clock=self.clock,
            metrics=self.metrics,
            timeout_s=config.server.request_timeout_s,
            url_of=self.fleet.url_of,
            failure_of=self.failure_of,
        )

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Place and start every model. Returns at once; phases tell the rest."""
        for device, view in self.views.items():
            self.metrics.budget(device, view.budget_bytes)
        for instance in self.fleet:
            self.metrics.phase(instance.name, instance.phase)
        self.observer.first_snapshot()
        self._observing = asyncio.create_task(self.observer.run(), name="observer")

    async def drain(self, at_once: asyncio.Event) -> None:
        """Take nothing new.

        Let running requests end for `drain_s` or until `at_once`, then interrupt the rest.
        """
        self.draining = True
        empty = asyncio.create_task(self.table.wait_empty())
        hurry = asyncio.create_task(at_once.wait())
        await asyncio.wait(
            {empty, hurry}, timeout=self.config.server.drain_s, return_when=asyncio.FIRST_COMPLETED
        )
        hurry.cancel()
        for request in self.table:
            request.stop("stopping")
        await asyncio.wait({empty}, timeout=_ABORT_S)
        empty.cancel()

    async def close(self, at_once: asyncio.Event) -> None:
        """End every engine, then everything else."""
        if self._observing is not None:
            self._observing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._observing
        await self.fleet.stop(at_once=at_once)
        self.executor.close()
        await self.upstream.close()
        await self._session.close()
        if self._event_log is not None:
            self._event_log.close()

    # -- requests --------------------------------------------------------------------------------------------

    async def admit(self, api: ApiRequest) -> LiveRequest:
        """The request ready for its exchange; raises `ApiError` when it can't be taken at all."""
        arrival_s = self.clock.now_s()
        instance = self.fleet.get(api.model)
        if instance is None:
            known = ", ".join(sorted(i.name for i in self.fleet))
            raise ApiError(
                404, f"model {api.model!r} is not served here; known: {known}", "model_not_found", "model"
            )
        if self.draining:
            raise ApiError(503, "the service is stopping", "stopping", None, 5.0)
        counter, plan = self._counters.get(api.model), instance.planned.plan
        if instance.device is None or counter is None or plan is None:
            message = f"model {api.model!r} has failed: {self.failure_of(api.model)}"
            raise ApiError(503, message, "model_failed", None, None)
        check_vocabulary(api, plan.facts.vocab_size)
        if self.table.full:
            raise ApiError(
                429, f"more than {self.table.max_requests} requests are held", "queue_full", None, 1.0
            )
        prompt_tokens = await counter.count(api)
        self.observer.rates.arrived(api.model, prompt_tokens)
        most = max(1, plan.max_request_tokens - prompt_tokens)
        return LiveRequest(
            request_id=f"req-{next(self._ids)}",
            device=instance.device.name,
            api=api,
            prompt_tokens=prompt_tokens,
            max_tokens=most if api.max_tokens is None else min(api.max_tokens, most) * api.choices,
            arrival_s=arrival_s,
            due_at_s=arrival_s + instance.planned.settings.slo.ttft_s,
        )

    def failure_of(self, model: str) -> str:
        """Why the model does not serve, for people."""
        instance = self.fleet.get(model)
        if instance is not None and instance.detail:
            return instance.detail
        unplaced = self._global.unplaced if isinstance(self._global, GlobalScheduler) else {}
        return unplaced.get(model, "it was not placed on any device")

    # -- parts -----------------------------------------------------------------------------------------------

    def _starter(self, runtime: RuntimeDir) -> EngineStarter:
        return EngineStarter(
            session=self._session,
            engine_dir=runtime.engine_dir,
            ledger_path=runtime.ledger_path,
            log_path=runtime.log_path,
        )

    def _on_phase(self, instance: Instance, op_id: str | None) -> None:
        """An instance entered a phase: both schedulers must know."""
        self.metrics.phase(instance.name, instance.phase)
        if instance.device is None:
            return
        device = instance.device.name
        event = ModelState(instance.name, instance.name, device, instance.phase, op_id, instance.detail)
        self.decider.feed(local_name(device), event)
        self.decider.feed(GLOBAL, event)


def _running_limit(config: Config) -> int:
    return sum(model.engine.max_running_requests for model in config.models)


def _schedulers(
    config: Config, planned: list[PlannedModel]
) -> tuple[dict[str, SchedulerConfig], dict[str, Scheduler]]:
    """Configurations (for the event log's header) and the schedulers made from them."""
    placement = global_config(config, planned)
    configs: dict[str, SchedulerConfig] = {GLOBAL: placement}
    schedulers: dict[str, Scheduler] = {GLOBAL: GlobalScheduler(placement)}
    for device in config.devices:
        local = local_config(config, device.name, planned)
        configs[local_name(device.name)] = local
        schedulers[local_name(device.name)] = LocalScheduler(local)
    return configs, schedulers


def _instances(planned: list[PlannedModel]) -> list[Instance]:
    instances: list[Instance] = []
    for index, model in enumerate(planned):
        instance = Instance(planned=model, index=index)
        if model.reason is not None:
            instance.phase, instance.detail = "failed", model.reason
            log.error("model %s failed: %s", instance.name, model.reason)
        instances.append(instance)
    return instances
