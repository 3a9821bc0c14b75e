"""The ledger's protocol as a state machine of atomic steps, small enough to be explored exhaustively.

One step is one load, store, read-modify-write or futex call that another process can see; between any two of
them another process may take its turn, or this one be killed. What each state of `Client.at` does next, and
where that stands in csrc/ledger:

===================================  =====================================================================
idle                                 the waiter reads the generation and calls `LedgerClient::try_claim`
look                                 `headroom_bytes`: own floor, then line by line, then limit
add, check, own, scan, back          `try_claim`: add; limit and secured floor; own floor; lines; take back
granted                              `try_claim`: does a want stand? `queue_again`: is mine met?
ring, count, reflag, call            `LedgerFile::bump`: clear the flag, count, look again, FUTEX_WAKE
refused, want                        `LedgerClient::set_want`
flag, compare, asleep                `LedgerFile::sleep`: the flag, then the futex call
hold, release                        memory is in use; `LedgerClient::release`
serve, plan, give                    `ReclaimServer`: read the generation, `asked_bytes`, evict and release
the reaper's clear, ring ... unmark  `LedgerFile::reap`, which may be killed as well
===================================  =====================================================================

`reads_lines_in_two` splits each look at a line into its loads of floor and used. Settings (`Settings` in
settings.cpp) change in one step with their bell. Left out are time and order among wants: lapses, turns and
yielding only make a claim refuse earlier, and are rung for (`ring_for_lapses`). Nobody times out here: real
waiters look again after a bounded time, these must not need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Protocol:
    """The steps as they are; a test leaves out one at a time to see that exploring finds it."""

    looks_again_after_adding: bool = True
    rings_after_taking_back: bool = True
    rings_for_wants_after_a_grant: bool = True
    clears_flag_before_counting: bool = True
    flags_before_sleeping: bool = True
    reaper_wakes_in_any_case: bool = True
    reaper_keeps_mark_until_rung: bool = True
    floors_are_versioned: bool = True
    reads_floor_before_used: bool = True
    wants_are_levels: bool = True


@dataclass(frozen=True)
class World:
    """What is explored: workers by what they claim, caches by what they hold, and what others may change."""

    budget: int
    needs: tuple[int, ...]
    """By client; 0 for a cache."""
    caches: tuple[int, ...] = ()
    """Held at the start, and given back when asked; 0 for a worker."""
    floors: tuple[int, ...] = ()
    limits: tuple[int, ...] = ()
    wanting: tuple[int, ...] = ()
    """Clients that say what they want when they were refused."""
    holders: tuple[int, ...] = ()
    """Workers that begin with what they need."""
    reads_lines_in_two: bool = False
    may_die: bool = True
    comes_back: bool = True
    """A worker that has released claims again; else it stays away."""
    floor_changes: tuple[tuple[int, int], ...] = ()
    """(client, floor), applied in this order at any time."""
    limit_changes: tuple[tuple[int, int], ...] = ()


class Client(NamedTuple):
    at: str
    used: int
    held: int
    """What it was granted and may fill with memory."""
    floor: int
    floor_version: int
    limit: int
    want_to: int = 0
    secured: int = -1
    """The version of the floor that was seen to fit; -1 for none."""
    marked: bool = True
    """Its place counts as in use."""
    step: int = 0
    """Which load of a scan comes next."""
    seen: int = 0
    """What the scan has added up."""
    part: int = 0
    """What the first load of the present line said."""
    own_floor: tuple[int, int] = (0, 0)
    """Its own floor and that floor's version when the scan began."""
    collided: bool = False
    changed: bool = False
    """The generation differs from the one read before the claim."""
    called: bool = False
    """It has cleared the waiters' flag, so it wakes them."""
    then: str = ""
    """Where it goes on once it has rung."""


class State(NamedTuple):
    clients: tuple[Client, ...]
    has_waiters: bool
    reaper: tuple[str, int]
    """What it does next to which client; ("look", -1) in between."""
    floor_changes: int
    limit_changes: int


SCANNING = frozenset(("look", "scan", "plan"))
RINGING = frozenset(("ring", "count", "reflag", "call"))
CLAIMING = frozenset(("add", "check", "own", "back", "granted"))
ENDED = frozenset(("dead", "gone"))
KEPT_BY_THE_DEAD = ("used", "held", "floor", "want_to", "marked")


def start(world: World) -> State:
    count = len(world.needs)
    floors, limits = world.floors or (0,) * count, world.limits or (world.budget,) * count
    caches = world.caches or (0,) * count
    clients = []
    for i, need in enumerate(world.needs):
        held = need if i in world.holders else caches[i]
        at = "hold" if i in world.holders else "idle" if need else "serve"
        clients.append(Client(at, held, held, floors[i], 0, limits[i]))
    return State(tuple(clients), has_waiters=False, reaper=("look", -1), floor_changes=0, limit_changes=0)


def successors(state: State, world: World, protocol: Protocol) -> Iterator[State]:
    for i, client in enumerate(state.clients):
        if client.at in ENDED:
            continue
        yield from _up_to_the_next_shared_step(state, i, world, protocol)
        if world.may_die and client.at != "idle":
            kept = {name: getattr(client, name) for name in KEPT_BY_THE_DEAD}
            dead = Client("dead", floor_version=0, limit=0, **kept)
            yield _placed(state, i, dead)
    yield from _reaper_steps(state, world, protocol)
    yield from _setting_steps(state, world, protocol)


def _up_to_the_next_shared_step(state: State, i: int, world: World, protocol: Protocol) -> Iterator[State]:
    """A step, and with it what then follows from loads of things that nobody changes in this world."""
    for after in _client_steps(state, i, world, protocol):
        at = after.clients[i].at
        is_private = at in ("check", "own") and not world.floor_changes and not world.limit_changes
        is_private |= (at == "granted" and not world.wanting) or (at == "refused" and i not in world.wanting)
        if is_private:
            yield from _up_to_the_next_shared_step(after, i, world, protocol)
        else:
            yield after


def _client_steps(state: State, i: int, world: World, protocol: Protocol) -> Iterator[State]:
    at = state.clients[i].at
    if at in RINGING:
        yield from _bell_steps(state, i, world, protocol)
    elif at in SCANNING:
        loaded = _load(state, i, world, protocol)
        is_last = loaded.clients[i].step == _loads(world)
        yield from _decisions(loaded, i, world) if is_last else (loaded,)
    elif at in CLAIMING:
        yield from _claim_steps(state, i, world, protocol)
    else:
        yield from _other_steps(state, i, world, protocol)


def _claim_steps(state: State, i: int, world: World, protocol: Protocol) -> Iterator[State]:
    """What `try_claim` does beside looking at the lines."""
    me, need = state.clients[i], world.needs[i]
    if me.at == "add":
        yield _with(state, i, at="check", used=me.used + need)
    elif me.at == "check":
        if me.used > me.limit:
            yield _with(state, i, at="back")
        elif me.secured == me.floor_version and me.used <= me.floor:
            yield _with(state, i, at="granted", held=need)
        elif protocol.looks_again_after_adding:
            yield _with(state, i, at="own")
        else:
            yield _with(state, i, at="granted", held=need)
    elif me.at == "own":
        yield _with(state, i, at="scan", own_floor=(me.floor, me.floor_version))
    elif me.at == "back":
        own_floor = (me.floor, me.floor_version)
        taken = _with(state, i, at="look", used=me.used - need, collided=True, own_floor=own_floor)
        yield taken
        if protocol.rings_after_taking_back:
            yield _rings(taken, i, then="refused")
        else:
            yield _with(taken, i, at="refused")
    elif me.at == "granted":
        is_wanted = any(c.want_to for j, c in enumerate(state.clients) if j != i)
        must_ring = me.collided and protocol.rings_after_taking_back
        must_ring |= is_wanted and protocol.rings_for_wants_after_a_grant
        if me.want_to and me.used > me.floor:
            must_ring = True
        met = 0 if me.want_to <= me.used and protocol.wants_are_levels else me.want_to
        after = _with(state, i, at="hold", want_to=met)
        yield _rings(after, i, then="hold") if must_ring else after


def _other_steps(state: State, i: int, world: World, protocol: Protocol) -> Iterator[State]:
    me, need = state.clients[i], world.needs[i]
    if me.at == "idle":
        yield _with(state, i, at="look", own_floor=(me.floor, me.floor_version), changed=False)
    elif me.at == "refused":
        if i in world.wanting and me.want_to != me.used + need:
            yield _rings(_with(state, i, at="want", want_to=me.used + need), i, then="flag")
        else:
            yield _with(state, i, at="flag" if protocol.flags_before_sleeping else "compare")
    elif me.at == "flag":
        flagged = state._replace(has_waiters=True)
        yield _with(flagged, i, at="compare" if protocol.flags_before_sleeping else "asleep")
    elif me.at == "compare":  # the futex call looks and falls asleep in one step
        asleep = "asleep" if protocol.flags_before_sleeping else "flag"
        yield _with(state, i, at=_first(world, i) if me.changed else asleep)
    elif me.at == "hold":
        if me.want_to:  # its owner says that it wants no more
            yield _rings(_with(state, i, want_to=0), i, then="hold")
        else:
            then = "idle" if world.comes_back else "gone"
            yield _rings(_with(state, i, at="release", used=me.used - me.held, held=0), i, then=then)
    elif me.at == "serve":
        yield _with(state, i, at="plan", changed=False)


def _decisions(state: State, i: int, world: World) -> Iterator[State]:
    """What follows from a scan: nothing shared is read for it, so it belongs to the scan's last load."""
    me, need = state.clients[i], world.needs[i]
    if me.at == "look":
        room = world.budget - me.seen
        if me.secured == me.own_floor[1]:
            room = max(room, me.own_floor[0])
        if need <= min(room, me.limit) - me.used:
            yield _with(state, i, at="add")
        else:
            yield _rings(state, i, then="refused") if me.collided else _with(state, i, at="refused")
    elif me.at == "scan":
        if me.seen + me.used <= world.budget:
            secured = me.own_floor[1] if me.seen + me.own_floor[0] <= world.budget else me.secured
            yield _with(state, i, at="granted", held=need, secured=secured)
        else:
            yield _with(state, i, at="back")
    else:
        asked = asked_of(me, me.seen, world)
        if asked == 0:
            yield _with(state, i, at="flag")
        else:
            given = _with(state, i, at="give", used=me.used - asked, held=me.used - asked)
            yield _rings(given, i, then="serve")


def _loads(world: World) -> int:
    return len(world.needs) * (2 if world.reads_lines_in_two else 1)


def _load(state: State, i: int, world: World, protocol: Protocol) -> State:
    """One load of a scan. What a plan adds up is everything that is held, guaranteed or wanted."""
    me = state.clients[i]
    loads_per_line = 2 if world.reads_lines_in_two else 1
    step = me.step
    if step // loads_per_line == i and me.at != "plan":
        step += loads_per_line
    other = state.clients[step // loads_per_line]
    if loads_per_line == 1:
        part, seen = 0, me.seen + max(other.used, other.floor) + _want(me, other, protocol)
    else:
        is_first = step % 2 == 0
        value = other.floor if is_first == protocol.reads_floor_before_used else other.used
        part, seen = (value, me.seen) if is_first else (0, me.seen + max(me.part, value))
    step += 1
    if step // loads_per_line == i and me.at != "plan":
        step += loads_per_line
    return _with(state, i, step=step, part=part, seen=seen)


def _want(me: Client, other: Client, protocol: Protocol) -> int:
    if me.at != "plan" or not other.want_to:
        return 0
    return (
        max(0, other.want_to - max(other.used, other.floor)) if protocol.wants_are_levels else other.want_to
    )


def asked_of(me: Client, demand: int, world: World) -> int:
    """What a cache gives back: what all lack together, and what it holds over its limit; not its floor."""
    over_limit = me.used - max(me.floor, me.limit)
    return max(0, over_limit, min(demand - world.budget, me.used - me.floor))


def _bell_steps(state: State, i: int, world: World, protocol: Protocol) -> Iterator[State]:
    me = state.clients[i]
    if me.at == "ring":
        if protocol.clears_flag_before_counting:
            yield _with(state._replace(has_waiters=False), i, at="count", called=state.has_waiters)
        else:
            yield _with(_counted(state), i, at="count")
    elif me.at == "count":
        if protocol.clears_flag_before_counting:
            yield _with(_counted(state), i, at="reflag")
        else:
            yield _with(state._replace(has_waiters=False), i, at="call", called=state.has_waiters)
    elif me.at == "reflag":
        yield _with(state, i, at="call", called=me.called or state.has_waiters)
    elif me.at == "call":
        rung = _with(state, i, at=me.then, called=False, then="")
        yield _woken(rung, world) if me.called else rung


def _reaper_steps(state: State, world: World, protocol: Protocol) -> Iterator[State]:
    doing, i = state.reaper
    at_rest = ("look", -1)
    if doing == "look":
        for j, client in enumerate(state.clients):
            if client.at == "dead" and client.marked:
                yield state._replace(reaper=("clear", j))
        return
    yield state._replace(reaper=at_rest)  # killed: whoever reaps next begins anew
    if doing == "clear":
        keeps_mark = protocol.reaper_keeps_mark_until_rung
        cleared = _with(state, i, used=0, held=0, floor=0, want_to=0, marked=keeps_mark)
        yield cleared._replace(reaper=("ring", i))
    elif doing == "ring":
        called = state.has_waiters or protocol.reaper_wakes_in_any_case
        yield state._replace(has_waiters=False, reaper=("count and call" if called else "count", i))
    elif doing == "count and call":
        yield _counted(state)._replace(reaper=("call", i))
    elif doing == "count":
        yield _counted(state)._replace(reaper=("call" if state.has_waiters else "unmark", i))
    elif doing == "call":
        yield _woken(state, world)._replace(reaper=("unmark", i))
    elif doing == "unmark":
        yield _with(state, i, marked=False, at="gone")._replace(reaper=at_rest)


def _setting_steps(state: State, world: World, protocol: Protocol) -> Iterator[State]:
    if state.floor_changes < len(world.floor_changes):
        i, floor = world.floor_changes[state.floor_changes]
        me = state.clients[i]
        fits = floor + sum(c.floor for j, c in enumerate(state.clients) if j != i) <= world.budget
        if fits and me.at not in ENDED and floor <= me.limit:
            version = me.floor_version + (1 if protocol.floors_are_versioned else 0)
            changed = _with(state, i, floor=floor, floor_version=version)
            yield _woken(_counted(changed._replace(floor_changes=state.floor_changes + 1)), world)
    if state.limit_changes < len(world.limit_changes):
        i, limit = world.limit_changes[state.limit_changes]
        if state.clients[i].at not in ENDED and state.clients[i].floor <= limit:
            changed = _with(state, i, limit=limit)
            yield _woken(_counted(changed._replace(limit_changes=state.limit_changes + 1)), world)


def _with(state: State, i: int, **changes: Any) -> State:
    """`state` with client `i` changed; what no later step can read is put back, so that states coincide."""
    client = state.clients[i]._replace(**changes)
    if client.at not in SCANNING:
        client = client._replace(step=0, seen=0, part=0, own_floor=(0, 0))
    elif client.at != state.clients[i].at:
        client = client._replace(step=0, seen=0, part=0)
    if client.at in ("idle", "serve", "hold"):
        client = client._replace(changed=False, collided=False)
    elif client.at in ("refused", "flag"):
        client = client._replace(collided=False)
    return _placed(state, i, client)


def _placed(state: State, i: int, client: Client) -> State:
    return state._replace(clients=(*state.clients[:i], client, *state.clients[i + 1 :]))


def _rings(state: State, i: int, then: str) -> State:
    return _with(state, i, at="ring", then=then)


def _counted(state: State) -> State:
    clients = tuple(
        c if c.at in ENDED or c.at in ("idle", "serve", "hold") else c._replace(changed=True)
        for c in state.clients
    )
    return state._replace(clients=clients)


def _woken(state: State, world: World) -> State:
    """FUTEX_WAKE: all who sleep go round their loop again, whatever the flag says."""
    for i, client in enumerate(state.clients):
        if client.at == "asleep":
            state = _with(state, i, at=_first(world, i))
    return state


def _first(world: World, i: int) -> str:
    return "idle" if world.needs[i] else "serve"
