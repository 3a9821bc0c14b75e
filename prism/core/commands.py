"""Everything a scheduler can ask for. The executor obeys and decides nothing.

`op_id` names one execution of one command and comes back in the event that ends it (table in
`prism.core.events`). `revision` grows with every decision of the global scheduler: an executor ignores
nothing, but answers a command that is older than one already carried out for the same model with a failed
ModelState.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hold:
    """The request waits here, and why: model_not_ready, window, kv, running, backoff or order.

    Said once per request.
    """

    request_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the request to this instance now."""

    op_id: str
    request_id: str
    model: str
    instance: str


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop the request at its engine; its client is gone or has been answered."""

    op_id: str
    request_id: str
    instance: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the client that we will not serve this.

    `retry_after_s`: when trying again may help; None: it won't.
    """

    op_id: str
    request_id: str
    reason: str
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Activate:
    """Make the model ready on the device. `peer_devices`: the other devices of its tensor parallel group."""

    op_id: str
    revision: int
    model: str
    device: str
    peer_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Park:
    """Give the instance's memory back; keep its process and addresses."""

    op_id: str
    revision: int
    model: str
    instance: str


@dataclass(frozen=True, slots=True)
class Move:
    """Make the model ready on `device`, and only then drain and stop the source instance."""

    op_id: str
    revision: int
    model: str
    instance: str
    device: str
    peer_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drain:
    """Send the instance nothing new and let what it runs end."""

    op_id: str
    revision: int
    model: str
    instance: str


@dataclass(frozen=True, slots=True)
class SetLimit:
    """Bound the instance's KV bytes; None lifts the bound."""

    op_id: str
    revision: int
    model: str
    instance: str
    limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send Woke(timer_id) at `at_s`. The latest WakeAt of an id replaces the earlier one."""

    timer_id: str
    at_s: float


Command = Hold | Dispatch | Abort | Refuse | Activate | Park | Move | Drain | SetLimit | WakeAt
