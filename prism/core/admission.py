"""The order in which waiting requests are offered: the plan, with the late requests' bounded share."""

from collections.abc import Iterator
from dataclasses import dataclass

from prism.core.engines import Engine
from prism.core.late_share import LateShare
from prism.core.moore_hodgson import Job, Plan
from prism.core.room import NoRoom, Room
from prism.core.waiting import Waiting, WaitingQueue


class _Line:
    """Jobs in order, skipping models found to have no room in this pass."""

    def __init__(self, jobs: tuple[Job, ...], queue: WaitingQueue, skip: set[str]) -> None:
        self._requests = [queue[job.seq] for job in jobs]
        self._skip = skip
        self._next = 0

    def head(self) -> Waiting | None:
        while self._next < len(self._requests):
            waiting = self._requests[self._next]
            if waiting.request.model not in self._skip:
                return waiting
            self._next += 1
        return None

    def pop(self) -> None:
        self._next += 1


@dataclass(slots=True)
class Admission:
    """Walks a plan and yields who may go where; the caller dispatches before asking for the next."""

    share: LateShare

    def walk(
        self, plan: Plan, queue: WaitingQueue, room: Room, now_s: float
    ) -> Iterator[tuple[Waiting, Engine]]:
        """Yield requests in the order they are to be sent, each with its engine.

        A request that does not fit the window ends the walk: nobody overtakes it, or large prompts would
        starve. One whose engines lack memory or a running slot lets only other models pass, for the same
        reason.
        """
        skip: set[str] = set()
        on_time, late = _Line(plan.on_time, queue, skip), _Line(plan.late, queue, skip)
        while True:
            first, first_late = on_time.head(), late.head()
            late_goes = first_late is not None and (first is None or self.share.owed(_tokens(first_late)))
            waiting = first_late if late_goes else first
            if waiting is None:
                return
            engine = room.find(waiting.request, now_s)
            if isinstance(engine, NoRoom):
                if engine.reason == "window":
                    return
                skip.add(waiting.request.model)
                continue
            self._account(waiting, first, first_late)
            (late if late_goes else on_time).pop()
            yield waiting, engine

    def _account(self, gone: Waiting, first: Waiting | None, first_late: Waiting | None) -> None:
        if first is None or first_late is None:
            return
        if gone is first_late:
            self.share.late_went(_tokens(gone))
        else:
            self.share.on_time_went(_tokens(gone), _tokens(first_late))


def _tokens(waiting: Waiting) -> int:
    return waiting.request.prompt_tokens
