"""The scheduler of one device: which request goes next.

Composes the parts and holds no arithmetic: the queue (`waiting`), what engines hold (`flights`), what fits
(`room`), time predictions (`workload`) and the order (`admission` over `moore_hodgson`).

A request is in exactly one place: waiting, in flight, being refused, or gone. Whatever happens to an engine,
a waiting request is looked at again after every event, so none is forgotten while an engine could take it.
"""

from prism.core.admission import Admission
from prism.core.commands import Abort, Command, Dispatch, Hold, Refuse, WakeAt
from prism.core.config import LocalConfig
from prism.core.events import (
    Arrived,
    Cancelled,
    ConfigChanged,
    DeviceLost,
    Dispatched,
    EngineState,
    Event,
    Expired,
    Finished,
    FirstToken,
    ModelState,
    PrefillProgress,
    Refused,
    Snapshot,
    Woke,
)
from prism.core.flights import Flight, Flights
from prism.core.late_share import LateShare
from prism.core.ops import OpIds
from prism.core.room import NoRoom, Room
from prism.core.waiting import Waiting, WaitingQueue
from prism.core.window import PrefillWindow
from prism.core.workload import Workload

_BACKOFF_TIMER = "backoff:"
_NOT_SERVING = ("failed", "cold", "parked")


class LocalScheduler:
    """Events in, commands out. Knows no clock: `now_s` comes with every event and never goes back.

    Raises ValueError when a request id arrives twice: that is the executor's mistake, and answering either of
    the two would be a guess.
    """

    def __init__(self, config: LocalConfig) -> None:
        self._ops = OpIds(config.device)
        self._queue = WaitingQueue()
        self._flights = Flights()
        self._refusing: dict[str, str] = {}  # op_id -> request_id
        self._room = Room(PrefillWindow(config.window_prefill_tokens))
        self._workload = Workload()
        self._admission = Admission(LateShare(config.late_share))
        self._arrivals = 0
        self._configure(config)

    # -- facts about the scheduler, for metrics and tests ----------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests waiting here."""
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """Requests that engines hold."""
        return len(self._flights)

    @property
    def outstanding_prefill_tokens(self) -> int:
        """Prompt tokens dispatched and not yet prefilled, over all engines."""
        return self._room.window.outstanding_tokens

    @property
    def pledged_bytes(self) -> int:
        """KV bytes promised and not yet visible in an engine's report."""
        return self._room.pledges.total_bytes

    # -- events ----------------------------------------------------------------------------------------------

    def on_event(self, event: Event, now_s: float) -> list[Command]:
        """Take one event; return what to do now, in order."""
        commands = self._take(event, now_s)
        commands += self._dispatch(now_s)
        if isinstance(event, Arrived) and event.request_id in self._queue:
            commands.append(self._hold(event, now_s))
        return commands

    def _take(self, event: Event, now_s: float) -> list[Command]:  # noqa: C901, PLR0911, PLR0912 (one line per event)
        match event:
            case Arrived():
                return self._arrived(event)
            case Cancelled(request_id) | Expired(request_id):
                return self._left(request_id)
            case Dispatched():
                return self._dispatched(event, now_s)
            case Refused():
                return self._refused(event, now_s)
            case PrefillProgress(request_id, prefilled_tokens):
                return self._progressed(request_id, prefilled_tokens)
            case FirstToken(request_id):
                return self._first_token(request_id, now_s)
            case Finished(request_id):
                return self._finished(request_id)
            case EngineState():
                return self._reported(event)
            case ModelState():
                return self._phase(event)
            case DeviceLost(device):
                return self._lost(event) if device == self._config.device else []
            case ConfigChanged(_, config):
                return self._reconfigured(config) if isinstance(config, LocalConfig) else []
            case Woke(timer_id):
                return self._woke(timer_id)
            case Snapshot():
                return []

    def _arrived(self, event: Arrived) -> list[Command]:
        request_id = event.request_id
        if request_id in self._queue or request_id in self._flights or request_id in self._refusing.values():
            raise ValueError(f"request id {request_id!r} arrived twice on {self._config.device}")
        if event.model not in self._room.models:
            return [self._refuse(request_id, "unknown_model", None)]
        if self._room.engines.failed(event.model):
            return [self._refuse(request_id, "model_failed", self._config.failed_retry_after_s)]
        if len(self._queue) >= self._config.max_queued:
            return [self._refuse(request_id, "queue_full", self._retry_after_s())]
        self._arrivals += 1
        self._queue.add(Waiting(event, self._arrivals))
        return []

    def _left(self, request_id: str) -> list[Command]:
        """The client is gone or its time is up. An engine that holds the request is told, once."""
        self._queue.remove(request_id)
        self._forget_refusal(request_id)
        flight = self._flights.get(request_id)
        if flight is None or flight.abort_op_id is not None:
            return []
        flight.abort_op_id = self._ops.next()
        return [Abort(flight.abort_op_id, request_id, flight.instance)]

    def _dispatched(self, event: Dispatched, now_s: float) -> list[Command]:
        flight = self._flights.get(event.request_id)
        if flight is not None and flight.op_id == event.op_id:
            flight.dispatched_at_s = now_s
            engine = self._room.engines.get(flight.instance)
            if engine is not None:
                engine.accepted()
        return []

    def _refused(self, event: Refused, now_s: float) -> list[Command]:
        if self._refusing.pop(event.op_id, None) is not None:
            return []
        flight = self._flights.get(event.request_id)
        if flight is None or flight.op_id != event.op_id:
            return []  # of a dispatch that is over
        self._end_flight(flight)
        if event.final or flight.abort_op_id is not None:
            return []
        return self._try_again(flight, now_s)

    def _try_again(self, flight: Flight, now_s: float) -> list[Command]:
        """An engine would not have it: back to its old place in the queue, unless that is pointless now."""
        again = Waiting(flight.waiting.request, flight.waiting.seq, flight.waiting.refusals + 1)
        request_id, model = again.request.request_id, again.request.model
        engine = self._room.engines.get(flight.instance)
        if model not in self._room.models:
            return [self._refuse(request_id, "unknown_model", None)]
        if self._room.engines.failed(model):
            return [self._refuse(request_id, "model_failed", self._config.failed_retry_after_s)]
        if again.refusals >= self._config.max_attempts:
            return [self._refuse(request_id, "engine_refused", self._retry_after_s())]
        self._queue.add(again)
        if engine is None or engine.phase != "ready":
            return []
        return [WakeAt(_BACKOFF_TIMER + engine.instance, engine.rest(now_s, self._config.refusal_backoff_s))]

    def _progressed(self, request_id: str, prefilled_tokens: int) -> list[Command]:
        """Of an answer that is not streamed this is all that ever tells that its prompt is done.

        `flight.prefilled` stays as it is: only a first token says how long the prefill took.
        """
        flight = self._flights.get(request_id)
        if flight is not None:
            self._room.progressed(flight.waiting.request, prefilled_tokens)
        return []

    def _first_token(self, request_id: str, now_s: float) -> list[Command]:
        flight = self._flights.get(request_id)
        if flight is None or flight.prefilled:
            return []
        flight.prefilled = True
        self._room.prefilled(request_id)
        if flight.dispatched_at_s is not None:
            elapsed_s = now_s - flight.dispatched_at_s
            self._workload.service.observe(flight.waiting.request.model, flight.predicted_s, elapsed_s)
        return []

    def _finished(self, request_id: str) -> list[Command]:
        self._queue.remove(request_id)
        self._forget_refusal(request_id)
        flight = self._flights.get(request_id)
        if flight is not None:
            self._end_flight(flight)
        return []

    def _reported(self, event: EngineState) -> list[Command]:
        self._room.engines.report(event)
        self._room.pledges.reported(event.instance)
        return []

    def _phase(self, event: ModelState) -> list[Command]:
        if event.device != self._config.device:
            return []
        engine = self._room.engines.enter_phase(event)
        if event.phase in _NOT_SERVING:
            # It prefills nothing any more. The executor still ends each of its requests with an event of its
            # own.
            for request_id in tuple(engine.requests):
                self._room.give_back(request_id, engine.instance)
        return self._refuse_failed(event.model)

    def _lost(self, event: DeviceLost) -> list[Command]:
        commands: list[Command] = []
        for engine in self._room.engines.all():
            failed = ModelState(engine.model, engine.instance, event.device, "failed", None, event.reason)
            commands += self._phase(failed)
        return commands

    def _reconfigured(self, config: LocalConfig) -> list[Command]:
        self._configure(config)
        gone = [w.request for w in self._queue if w.request.model not in self._room.models]
        commands: list[Command] = []
        for request in gone:
            self._queue.remove(request.request_id)
            commands.append(self._refuse(request.request_id, "unknown_model", None))
        return commands

    def _woke(self, timer_id: str) -> list[Command]:
        """A rest is over because its timer says so: comparing clocks here could leave it resting for good."""
        engine = self._room.engines.get(timer_id.removeprefix(_BACKOFF_TIMER))
        if engine is not None:
            engine.resting_until_s = None
        return []

    # -- parts -----------------------------------------------------------------------------------------------

    def _configure(self, config: LocalConfig) -> None:
        self._config = config
        self._room.models = {model.name: model for model in config.models}
        self._room.window.limit_tokens = config.window_prefill_tokens
        self._admission.share.share = config.late_share
        self._workload.service.configure(config.models)

    def _dispatch(self, now_s: float) -> list[Command]:
        """Send whatever the plan says may go now."""
        if not self._queue or self._room.window.full:
            return []
        open_models = self._room.open_models(now_s)
        candidates = [w for w in self._queue if w.request.model in open_models]
        if not candidates:
            return []
        plan = self._workload.plan(candidates, self._room.window, now_s)
        commands: list[Command] = []
        for waiting, engine in self._admission.walk(plan, self._queue, self._room, now_s):
            request = waiting.request
            predicted_s = self._workload.with_one_more_s(self._room.window, waiting)
            self._queue.remove(request.request_id)
            self._room.take(request, engine)
            flight = Flight(waiting, self._ops.next(), engine.instance, predicted_s)
            self._flights.start(flight)
            commands.append(Dispatch(flight.op_id, request.request_id, request.model, engine.instance))
        return commands

    def _hold(self, request: Arrived, now_s: float) -> Hold:
        room = self._room.find(request, now_s)
        return Hold(request.request_id, room.reason if isinstance(room, NoRoom) else "order")

    def _end_flight(self, flight: Flight) -> None:
        request_id = flight.waiting.request.request_id
        self._flights.end(request_id)
        self._room.give_back(request_id, flight.instance)

    def _refuse(self, request_id: str, reason: str, retry_after_s: float | None) -> Refuse:
        op_id = self._ops.next()
        self._refusing[op_id] = request_id
        return Refuse(op_id, request_id, reason, retry_after_s)

    def _refuse_failed(self, model: str) -> list[Command]:
        """No engine of the model is left: its waiting requests get an answer now."""
        if not self._room.engines.failed(model):
            return []
        commands: list[Command] = []
        for waiting in self._queue.of_model(model):
            request_id = waiting.request.request_id
            self._queue.remove(request_id)
            commands.append(self._refuse(request_id, "model_failed", self._config.failed_retry_after_s))
        return commands

    def _forget_refusal(self, request_id: str) -> None:
        for op_id in [op for op, refused in self._refusing.items() if refused == request_id]:
            del self._refusing[op_id]

    def _retry_after_s(self) -> float:
        return self._workload.retry_after_s(self._queue, self._room.window)
