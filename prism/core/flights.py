"""Requests that engines hold, from Dispatch to the event that ends them."""

from dataclasses import dataclass, field

from prism.core.waiting import Waiting


@dataclass(slots=True)
class Flight:
    """One dispatched request.

    `predicted_s`: work outstanding on the device at dispatch, this request included.
    """

    waiting: Waiting
    op_id: str
    instance: str
    predicted_s: float
    dispatched_at_s: float | None = None
    prefilled: bool = False
    abort_op_id: str | None = None  # its client is gone; the engine was told


@dataclass(slots=True)
class Flights:
    """Flights by request id, in order of dispatch."""

    _flights: dict[str, Flight] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._flights

    def get(self, request_id: str) -> Flight | None:
        """The flight of a request, if an engine holds it."""
        return self._flights.get(request_id)

    def start(self, flight: Flight) -> None:
        """A request was dispatched."""
        self._flights[flight.waiting.request.request_id] = flight

    def end(self, request_id: str) -> Flight | None:
        """A request is no longer with an engine; None when it was not."""
        return self._flights.pop(request_id, None)
