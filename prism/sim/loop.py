"""Virtual time: a heap of what happens next. The heap key is (time, kind, seq), so ties have one order."""

import heapq
from collections.abc import Callable
from enum import IntEnum

Action = Callable[[], None]


class Kind(IntEnum):
    """What goes first at equal times.

    What engines did, then what is measured, then who arrives and who gives up.
    """

    ENGINE = 0
    LOADED = 1
    TIMER = 2
    REPORT = 3
    SNAPSHOT = 4
    ARRIVAL = 5
    EXPIRY = 6


class Loop:
    """The only clock of a simulation."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, Kind, int, Action]] = []
        self._seq = 0

    def at(self, time_s: float, kind: Kind, action: Action) -> None:
        """Do it then; at equal times by kind, then in the order asked for. Raises ValueError for the past."""
        if time_s < self.now_s:
            raise ValueError(f"{kind.name} at {time_s} s is in the past; it is {self.now_s} s")
        self._seq += 1
        heapq.heappush(self._heap, (time_s, kind, self._seq, action))

    def run_while(self, wanted: Callable[[], bool]) -> None:
        """Let things happen until none is left or `wanted` says stop."""
        while self._heap and wanted():
            self.now_s, _, _, action = heapq.heappop(self._heap)
            action()
