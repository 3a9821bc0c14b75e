"""Watches the engines from outside at a bounded interval and tells the schedulers what it saw.

Free KV memory comes from the ledger, rows that only the prefix cache holds from the engine's own load
report (they can be evicted, so they are free). Requests that are not streamed show no first token; for
those a report that nothing waits, made after they were sent, says that their prefill is over.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp

from prism.core.events import (
    DeviceFacts,
    EngineState,
    InstanceFacts,
    ModelLoad,
    PrefillProgress,
    Snapshot,
)
from prism.core.mailbox import GLOBAL, local_name
from prism.live.decider import Decider

if TYPE_CHECKING:
    from prism.live.fleet import Fleet
    from prism.live.instance import Instance
    from prism.live.kv_view import KvUse, KvView
    from prism.live.live_request import RequestTable
    from prism.live.metrics import Metrics

BUSY_INTERVAL_S = 0.2
IDLE_INTERVAL_S = 2.0
SNAPSHOT_INTERVAL_S = 5.0
_REPORT_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_ARRIVAL_MARGIN_S = (
    0.05  # a request sent this shortly before a report may not have reached the scheduler process
)

log = logging.getLogger("prism.observer")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """An engine's /v1/loads. `used_rows` leaves out what could be evicted.

    `made_unix_s` is the engine's wall clock.
    """

    made_unix_s: float
    running: int
    waiting: int
    used_rows: int
    tokens_per_s: float


class Rates:
    """Arrivals and tokens since the last snapshot, by model."""

    def __init__(self) -> None:
        self.arrivals: dict[str, int] = {}
        self.prompt_tokens: dict[str, int] = {}

    def arrived(self, model: str, prompt_tokens: int) -> None:
        """A request came in."""
        self.arrivals[model] = self.arrivals.get(model, 0) + 1
        self.prompt_tokens[model] = self.prompt_tokens.get(model, 0) + prompt_tokens

    def take(self, window_s: float, decode_tokens_per_s: dict[str, float]) -> tuple[ModelLoad, ...]:
        """Loads over the window that ends now; the next begins."""
        models = sorted(set(self.arrivals) | {m for m, rate in decode_tokens_per_s.items() if rate > 0})
        loads = tuple(
            ModelLoad(
                model=model,
                requests_per_s=self.arrivals.get(model, 0) / window_s,
                prompt_tokens_per_s=self.prompt_tokens.get(model, 0) / window_s,
                decode_tokens_per_s=decode_tokens_per_s.get(model, 0.0),
            )
            for model in models
        )
        self.arrivals.clear()
        self.prompt_tokens.clear()
        return loads


class Observer:
    """Polls while it runs. Owns the rates and the latest view of each device."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        table: RequestTable,
        decider: Decider,
        views: dict[str, KvView],
        metrics: Metrics,
        session: aiohttp.ClientSession,
    ) -> None:
        self._fleet = fleet
        self._table = table
        self._decider = decider
        self._views = views
        self._metrics = metrics
        self._session = session
        self._reports: dict[str, LoadReport] = {}
        self.rates = Rates()
        self.kv: dict[str, KvUse] = {}

    def first_snapshot(self) -> None:
        """Tell the global scheduler of an empty cluster, so that it places every model."""
        self._snapshot(SNAPSHOT_INTERVAL_S)

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        last_snapshot_s = loop.time()
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._table.wait_filled(), IDLE_INTERVAL_S)
                await asyncio.sleep(BUSY_INTERVAL_S)
            try:
                await self._look()
            except Exception:
                log.exception("looking at the engines failed; trying again")
            if loop.time() - last_snapshot_s >= SNAPSHOT_INTERVAL_S:
                self._snapshot(loop.time() - last_snapshot_s)
                last_snapshot_s = loop.time()

    async def _look(self) -> None:
        self._read_ledgers()
        ready = [instance for instance in self._fleet if instance.url is not None]
        reports = await asyncio.gather(*(self._report(instance) for instance in ready))
        for instance, report in zip(ready, reports, strict=True):
            if report is not None and instance.device is not None and instance.phase == "ready":
                self._reports[instance.name] = report
                self._tell(instance, instance.device.name, report)

    def _read_ledgers(self) -> None:
        self.kv = {}
        for device, view in self._views.items():
            uses = view.read()
            self.kv.update(uses)
            for instance in self._fleet:
                if instance.device is not None and instance.device.name == device:
                    use = uses.get(instance.name)
                    self._metrics.kv_used(device, instance.name, 0 if use is None else use.used_bytes)

    def _tell(self, instance: Instance, device: str, report: LoadReport) -> None:
        for request in self._table.of_model(instance.name):
            sent_s = request.sent_unix_s
            if (
                not request.prefilled
                and not request.ended
                and sent_s is not None
                and report.waiting == 0
                and report.made_unix_s > sent_s + _ARRIVAL_MARGIN_S
            ):
                request.prefilled = True
                progress = PrefillProgress(request.request_id, request.prompt_tokens)
                self._decider.feed(local_name(device), progress)
        state = self._engine_state(instance, report)
        if state is not None:
            self._decider.feed(local_name(device), state)

    def _engine_state(self, instance: Instance, report: LoadReport) -> EngineState | None:
        use, plan = self.kv.get(instance.name), instance.planned.plan
        if plan is None:
            return None
        token_bytes = plan.facts.kv_bytes_per_token
        if use is None:  # without kvcached: its rows are its own from the start
            rows = instance.planned.settings.engine.max_total_tokens
            free_bytes, used_bytes = (rows - report.used_rows) * token_bytes, rows * token_bytes
        else:
            free_rows = max(0, use.rows_backed - min(report.used_rows, use.rows_used))
            free_bytes, used_bytes = free_rows * token_bytes + use.obtainable_bytes, use.used_bytes
        return EngineState(
            instance=instance.name,
            model=instance.name,
            free_bytes=max(0, free_bytes),
            used_bytes=used_bytes,
            running=report.running,
            waiting=report.waiting,
            iteration_s=report.running / report.tokens_per_s if report.tokens_per_s > 0 else 0.0,
        )

    async def _report(self, instance: Instance) -> LoadReport | None:
        if instance.url is None:
            return None
        try:
            async with self._session.get(instance.url + "/v1/loads", timeout=_REPORT_TIMEOUT) as response:
                return _read_report(await response.json()) if response.status == HTTPStatus.OK else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, LookupError, TypeError):
            return None  # busy or going away; its phase is watched elsewhere

    def _snapshot(self, window_s: float) -> None:
        decode = {name: report.tokens_per_s for name, report in self._reports.items() if report.running}
        used = {device: sum(use.used_bytes for use in self._uses_on(device)) for device in self._views}
        snapshot = Snapshot(
            window_s=window_s,
            loads=self.rates.take(window_s, decode),
            instances=tuple(
                InstanceFacts(instance.name, instance.name, instance.device.name, instance.phase)
                for instance in self._fleet
                if instance.device is not None
            ),
            devices=tuple(DeviceFacts(device, used[device]) for device in self._views),
        )
        self._decider.feed(GLOBAL, snapshot)

    def _uses_on(self, device: str) -> list[KvUse]:
        names = {i.name for i in self._fleet if i.device is not None and i.device.name == device}
        return [use for name, use in self.kv.items() if name in names]


def _read_report(document: dict[str, Any]) -> LoadReport:
    load = document["loads"][0]
    return LoadReport(
        made_unix_s=float(load["timestamp"]),
        running=int(load["num_running_reqs"]),
        waiting=int(load["num_waiting_reqs"]),
        used_rows=int(load["num_used_tokens"]),
        tokens_per_s=float(load["gen_throughput"]),
    )
