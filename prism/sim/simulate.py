"""Run a trace through the schedulers in virtual time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from prism.core.mailbox import GLOBAL, local_name
from prism.report import RequestOutcome
from prism.sim.eventlog import Recorder
from prism.sim.executor import Executor
from prism.sim.loop import Action, Kind, Loop
from prism.sim.outcomes import Outcomes
from prism.sim.setup import SimSetup
from prism.traces import TraceRequest

if TYPE_CHECKING:
    from prism.core.codec import SchedulerConfig


@dataclass(frozen=True, slots=True)
class SimResult:
    """`outcomes` in the order requests ended; `peak_bytes` of KV per device; `unplaced`: model -> why."""

    outcomes: tuple[RequestOutcome, ...]
    end_s: float
    peak_bytes: dict[str, int]
    retractions: int
    unplaced: dict[str, str]


def simulate(trace: Sequence[TraceRequest], setup: SimSetup, event_log: IO[str] | None = None) -> SimResult:
    """Serve the trace and say what became of every request. Equal inputs give equal results and logs."""
    loop, outcomes = Loop(), Outcomes()
    executor = Executor(setup, loop, outcomes)
    if event_log is not None:
        configs: dict[str, SchedulerConfig] = {GLOBAL: setup.placement}
        configs |= {local_name(device.device): device for device in setup.devices}
        executor.recorder = Recorder(event_log, configs)
    to_come = _schedule_arrivals(trace, setup, loop, executor)
    _every(loop, setup.snapshot_every_s, Kind.SNAPSHOT, executor.snapshot)
    _every(loop, setup.report_every_s, Kind.REPORT, executor.report)
    loop.run_while(lambda: bool(to_come) or outcomes.open > 0)
    global_scheduler = executor.schedulers[GLOBAL]
    return SimResult(
        outcomes=tuple(outcomes.closed),
        end_s=loop.now_s,
        peak_bytes={name: node.budget.peak_bytes for name, node in executor.nodes.items()},
        retractions=sum(e.retractions for node in executor.nodes.values() for e in node.engines.values()),
        unplaced=getattr(global_scheduler, "unplaced", {}),
    )


def _schedule_arrivals(
    trace: Sequence[TraceRequest], setup: SimSetup, loop: Loop, executor: Executor
) -> dict[str, None]:
    """Put arrivals and time limits on the loop; returns the requests still to come, kept up to date."""
    to_come: dict[str, None] = {}

    def schedule(number: int, request: TraceRequest) -> None:
        request_id = f"r{number}"
        to_come[request_id] = None

        def arrive() -> None:
            del to_come[request_id]
            executor.arrive(request_id, request)

        loop.at(request.arrival_s, Kind.ARRIVAL, arrive)
        deadline_s = request.arrival_s + setup.request_timeout_s
        loop.at(deadline_s, Kind.EXPIRY, lambda: executor.expire(request_id))

    for number, request in enumerate(trace):
        schedule(number, request)
    return to_come


def _every(loop: Loop, period_s: float, kind: Kind, action: Action) -> None:
    """From time 0 on, for as long as the loop runs."""

    def tick() -> None:
        action()
        loop.at(loop.now_s + period_s, kind, tick)

    loop.at(0.0, kind, tick)
