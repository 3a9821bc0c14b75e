"""Everything a scheduler can be told. Frozen facts about the past; none reveals the future.

How a request ends. `Arrived` is followed by exactly one ending: `Finished`, a final `Refused`, `Cancelled` or
`Expired`. A request that was cancelled or expired while an engine held it is then aborted, and the `Abort` is
closed by a `Finished` with reason "aborted"; that one closes the command, not the request.

How a command ends. Every command with an `op_id` ends in exactly one event that carries this id:

| command | done | refused or failed |
|---|---|---|
| Dispatch | Dispatched | Refused |
| Abort | Finished(reason="aborted"), or whatever ended the request first, carrying the id | |
| Refuse | Refused(final=True) | |
| Activate, Move | ModelState(phase="ready") | ModelState(phase="failed") |
| Park, Drain | ModelState(phase="parked" or "drained") | ModelState(phase="failed") |
| SetLimit | EngineState | ModelState(phase="failed") |

`Hold` states what is already true and changes nothing, so it has no ending of its own. `WakeAt` ends in
`Woke`, unless a later `WakeAt` with the same timer id replaced it.
"""

from dataclasses import dataclass
from typing import Literal

from prism.core.config import GlobalConfig, LocalConfig

FinishReason = Literal["stop", "length", "aborted", "error", "lost"]
"""stop, length: the engine ended it. aborted: we did. error: the engine failed it. lost: the engine died."""

Phase = Literal["cold", "loading", "ready", "draining", "drained", "parking", "parked", "moving", "failed"]
"""Only `ready` takes requests. In every phase but `failed` requests for the model are held, not refused."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request came in. `due_at_s` = arrival + TTFT objective, on the scheduler's clock."""

    request_id: str
    model: str
    prompt_tokens: int
    max_tokens: int
    due_at_s: float
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client went away."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Expired:
    """The request's own time limit passed before it ended."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The request was handed to the engine (its bytes were written)."""

    op_id: str
    request_id: str
    instance: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A request was refused: by an engine (ends a Dispatch) or by us (ends a Refuse).

    `final`: the client has its answer and nothing more will happen. Not final: the scheduler decides anew.
    """

    op_id: str
    request_id: str
    reason: str
    final: bool


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """`prefilled_tokens` of the prompt are done so far (cumulative)."""

    request_id: str
    prefilled_tokens: int


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first non-empty content token left the engine: prefill is over."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A request ended. `output_tokens` counts what was produced. `op_id` is set when this ends an Abort."""

    request_id: str
    reason: FinishReason
    output_tokens: int
    op_id: str | None = None


@dataclass(frozen=True, slots=True)
class EngineState:
    """What one engine reports.

    `free_bytes`: KV bytes it could still use right now: its free rows in backed pages plus what the device's
    ledger would give it. `iteration_s`: recent mean time of one engine step, 0.0 when unknown.
    """

    instance: str
    model: str
    free_bytes: int
    used_bytes: int
    running: int
    waiting: int
    iteration_s: float
    op_id: str | None = None


@dataclass(frozen=True, slots=True)
class ModelState:
    """An instance of a model on a device entered a phase.

    `op_id`: the command this ends or progresses, if any.

    `peer_devices`: the other devices of its tensor parallel group; the first one's scheduler decides for the
    group.
    """

    model: str
    instance: str
    device: str
    phase: Phase
    op_id: str | None = None
    detail: str = ""
    peer_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """The device is gone, with every engine on it."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """Measured load of one model over the snapshot's window.

    Rates per second, over arrivals and decode steps.
    """

    model: str
    requests_per_s: float
    prompt_tokens_per_s: float
    decode_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class InstanceFacts:
    """Where an instance is, and in which phase."""

    model: str
    instance: str
    device: str
    phase: Phase
    peer_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Bytes of one device's budget in use now."""

    device: str
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster as last measured.

    A model absent from `loads` had no traffic; a device absent from `devices` is gone.
    """

    window_s: float
    loads: tuple[ModelLoad, ...]
    instances: tuple[InstanceFacts, ...]
    devices: tuple[DeviceFacts, ...]


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """New configuration for the scheduler it is sent to; requests in flight stay where they are."""

    revision: int
    config: LocalConfig | GlobalConfig


@dataclass(frozen=True, slots=True)
class Woke:
    """The timer set by the latest WakeAt with this id fired."""

    timer_id: str


Event = (
    Arrived
    | Cancelled
    | Expired
    | Dispatched
    | Refused
    | PrefillProgress
    | FirstToken
    | Finished
    | EngineState
    | ModelState
    | DeviceLost
    | Snapshot
    | ConfigChanged
    | Woke
)
