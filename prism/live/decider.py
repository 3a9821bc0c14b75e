"""The narrow door to the decisions: one event in, its commands out to the executor, both on record."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from prism.core.commands import Command
from prism.core.mailbox import Mailbox

if TYPE_CHECKING:
    from prism.core.events import Event
    from prism.live.clock import Clock
    from prism.live.event_log import EventLog


class Scheduler(Protocol):
    """What both schedulers are."""

    def on_event(self, event: Event, now_s: float) -> list[Command]:
        """Take one event; return what to do now, in order."""


Execute = Callable[[str, Command], None]


class Decider:
    """Feeds events to schedulers one at a time, in order, also when a command leads to another event."""

    def __init__(self, schedulers: dict[str, Scheduler], clock: Clock, log: EventLog | None) -> None:
        self._schedulers = schedulers
        self._clock = clock
        self._log = log
        self._mailbox = Mailbox(self._step)
        self._execute: Execute = lambda _scheduler, _command: None

    def connect(self, execute: Execute) -> None:
        """Commands go to `execute` from now on."""
        self._execute = execute

    def feed(self, scheduler: str, event: Event) -> None:
        """Take the event; its commands have been begun when the outermost call returns."""
        self._mailbox.put(scheduler, event)

    def _step(self, name: str, event: Event) -> None:
        now_s = self._clock.now_s()
        commands = self._schedulers[name].on_event(event, now_s)
        if self._log is not None:
            self._log.write(now_s, name, event, commands)
        for command in commands:
            self._execute(name, command)
