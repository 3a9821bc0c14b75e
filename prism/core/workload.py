"""The work a device has, in predicted seconds of prefill."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from prism.core import moore_hodgson
from prism.core.moore_hodgson import Job, Plan
from prism.core.service_time import ServiceTime
from prism.core.waiting import Waiting, WaitingQueue
from prism.core.window import PrefillWindow

MIN_RETRY_AFTER_S = 1.0


@dataclass(slots=True)
class Workload:
    """Turns tokens into seconds for the plan, the clock of work in flight, and Retry-After."""

    service: ServiceTime = field(default_factory=ServiceTime)

    def in_flight_s(self, window: PrefillWindow) -> float:
        """Predicted time until what the engines hold is prefilled."""
        return sum(self.service.work_s(held.model, held.tokens) for held in window.outstanding())

    def with_one_more_s(self, window: PrefillWindow, waiting: Waiting) -> float:
        """The same, after one more request."""
        request = waiting.request
        return self.in_flight_s(window) + self.service.work_s(request.model, request.prompt_tokens)

    def plan(self, candidates: Iterable[Waiting], window: PrefillWindow, now_s: float) -> Plan:
        """Which of the candidates can still be on time. The clock starts at the work already in flight."""
        jobs = [
            Job(
                seq=waiting.seq,
                work_s=self.service.work_s(waiting.request.model, waiting.request.prompt_tokens),
                due_s=waiting.request.due_at_s - now_s,
                priority=waiting.request.priority,
            )
            for waiting in candidates
        ]
        return moore_hodgson.plan(jobs, self.in_flight_s(window))

    def retry_after_s(self, queue: WaitingQueue, window: PrefillWindow) -> float:
        """When the work known now is predicted to be over."""
        waiting_s = sum(self.service.work_s(model, n) for model, n in queue.tokens_per_model().items())
        return max(MIN_RETRY_AFTER_S, self.in_flight_s(window) + waiting_s)
