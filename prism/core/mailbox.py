"""Events of several schedulers, handled one at a time and in order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from prism.core.events import Event

GLOBAL = "global"


def local_name(device: str) -> str:
    """Name of a device's scheduler in event logs."""
    return f"local:{device}"


class Mailbox:
    """Hands events over one at a time: what handling one leads to waits until it is handled.

    `handle` gets the scheduler's name and the event. When it raises, events that wait are handled
    with the next.
    """

    def __init__(self, handle: Callable[[str, Event], None]) -> None:
        self._handle = handle
        self._waiting: deque[tuple[str, Event]] = deque()
        self._handling = False

    def put(self, scheduler: str, event: Event) -> None:
        """Take the event; all that waits is handled when the outermost call returns."""
        self._waiting.append((scheduler, event))
        if self._handling:
            return
        self._handling = True
        try:
            while self._waiting:
                self._handle(*self._waiting.popleft())
        finally:
            self._handling = False
