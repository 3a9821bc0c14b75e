"""Carries out commands.

Every command with an op_id ends in exactly one event; most end later, where the work is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from prism.core.commands import (
    Abort,
    Activate,
    Command,
    Dispatch,
    Drain,
    Hold,
    Move,
    Park,
    Refuse,
    SetLimit,
    WakeAt,
)
from prism.core.events import Finished, ModelState, Refused, Woke

if TYPE_CHECKING:
    from prism.config import Config
    from prism.live.clock import Clock
    from prism.live.decider import Decider
    from prism.live.fleet import Fleet
    from prism.live.live_request import RequestTable


class Executor:
    """The only place where decisions become deeds."""

    def __init__(
        self, *, config: Config, decider: Decider, table: RequestTable, fleet: Fleet, clock: Clock
    ) -> None:
        self._config = config
        self._decider = decider
        self._table = table
        self._fleet = fleet
        self._clock = clock
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}

    def execute(self, scheduler: str, command: Command) -> None:
        """Begin to carry out a command of the named scheduler."""
        match command:
            case Hold(request_id, reason):
                request = self._table.get(request_id)
                if request is not None:
                    request.hold_reason = reason
            case Dispatch():
                self._dispatch(scheduler, command)
            case Refuse():
                self._refuse(scheduler, command)
            case Abort():
                self._abort(scheduler, command)
            case Activate(op_id, revision, model, device):
                self._fleet.activate(model, self._config.device(device), op_id, revision)
            case WakeAt(timer_id, at_s):
                self._wake_at(scheduler, timer_id, at_s)
            case Park() | Move() | Drain() | SetLimit():
                self._unsupported(scheduler, command)

    def close(self) -> None:
        """Cancel every timer."""
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()

    def _dispatch(self, scheduler: str, command: Dispatch) -> None:
        request = self._table.get(command.request_id)
        if request is None or request.ended:
            event = Refused(command.op_id, command.request_id, "the request is gone", final=True)
            self._decider.feed(scheduler, event)
            return
        request.open_dispatch_op_id = command.op_id
        request.hold_reason = None
        request.decisions.put_nowait(command)

    def _refuse(self, scheduler: str, command: Refuse) -> None:
        request = self._table.get(command.request_id)
        if request is None or request.ended:
            self._decider.feed(
                scheduler, Refused(command.op_id, command.request_id, command.reason, final=True)
            )
            return
        request.decisions.put_nowait(command)

    def _abort(self, scheduler: str, command: Abort) -> None:
        request = self._table.get(command.request_id)
        if request is None:
            self._decider.feed(scheduler, Finished(command.request_id, "aborted", 0, command.op_id))
            return
        request.abort_op_id = command.op_id
        request.stop("aborted")  # no effect when the request itself asked for it

    def _wake_at(self, scheduler: str, timer_id: str, at_s: float) -> None:
        key = (scheduler, timer_id)
        previous = self._timers.pop(key, None)
        if previous is not None:
            previous.cancel()
        delay_s = max(0.0, at_s - self._clock.now_s())
        self._timers[key] = asyncio.get_running_loop().call_later(delay_s, self._woke, scheduler, timer_id)

    def _woke(self, scheduler: str, timer_id: str) -> None:
        self._timers.pop((scheduler, timer_id), None)
        self._decider.feed(scheduler, Woke(timer_id))

    def _unsupported(self, scheduler: str, command: Park | Move | Drain | SetLimit) -> None:
        """No scheduler issues these in this version; the answer says that nothing was done."""
        instance = self._fleet.get(command.model)
        device = instance.device.name if instance is not None and instance.device is not None else ""
        detail = f"{type(command).__name__} is not supported by this version"
        event = ModelState(command.model, command.instance, device, "failed", command.op_id, detail)
        self._decider.feed(scheduler, event)
