"""Moore-Hodgson: the largest set of jobs one machine can finish by their deadlines.

J. M. Moore, "An n job, one machine sequencing algorithm for minimizing the number of late jobs", 1968. O(n
log n).
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """One request as the planner sees it.

    `work_s`: predicted service time. `due_s`: time left, negative when past.
    """

    seq: int  # arrival order: breaks every tie, so equal inputs give equal plans
    work_s: float
    due_s: float
    priority: int = 0  # higher first, among equal due times and among the late


@dataclass(frozen=True, slots=True)
class Plan:
    """`on_time`: serve in this order, earliest due first.

    `late`: cannot all be on time; by priority, then arrival.
    """

    on_time: tuple[Job, ...]
    late: tuple[Job, ...]


def _due_order(job: Job) -> tuple[float, int, int]:
    return (job.due_s, -job.priority, job.seq)


def plan(jobs: Iterable[Job], start_s: float = 0.0) -> Plan:
    """Admit by earliest due time; whenever a due time would be missed, drop the longest admitted job.

    `start_s` is when the machine becomes free: the work already in flight. The on-time set is as large as
    any.
    """
    admitted: list[tuple[float, int, Job]] = []  # max-heap on (work_s, seq), by negation
    dropped: list[Job] = []
    finish_s = start_s
    for job in sorted(jobs, key=_due_order):
        heapq.heappush(admitted, (-job.work_s, -job.seq, job))
        finish_s += job.work_s
        if finish_s > job.due_s:
            longest = heapq.heappop(admitted)[2]
            finish_s -= longest.work_s
            dropped.append(longest)
    return Plan(
        on_time=tuple(sorted((job for _, _, job in admitted), key=_due_order)),
        late=tuple(sorted(dropped, key=lambda job: (-job.priority, job.seq))),
    )
