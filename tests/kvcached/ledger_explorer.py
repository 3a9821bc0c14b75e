"""Explores the ledger's protocol (`ledger_model`): every state that any interleaving can reach.

Each state is checked by `check`; at the end `check_progress` shows that from each of them every living client
that waits can still get what it waits for.
"""

from __future__ import annotations

from collections import deque

from tests.kvcached.ledger_model import (
    ENDED,
    RINGING,
    Client,
    Protocol,
    State,
    World,
    asked_of,
    start,
    successors,
)

WAITING = frozenset(
    ("look", "add", "check", "own", "scan", "back", "refused", "want", "flag", "compare", "asleep")
)
TENTATIVE = frozenset(("check", "own", "scan"))
"""Added, and perhaps about to be taken back."""


class Broken(AssertionError):
    """A state that may not be reached."""


def check(state: State, world: World) -> None:
    """Raise Broken if a promise does not hold in this state."""
    granted = sum(client.held for client in state.clients)
    if granted > world.budget:
        raise Broken(f"{granted} granted of {world.budget}", state)
    for i, client in enumerate(state.clients):
        if client.at not in ENDED and not world.needs[i]:
            _check_cache(client, world.caches[i], world)
    if _is_bell_coming(state):
        return
    for i, client in enumerate(state.clients):
        if client.at == "asleep" and (client.changed or _could_go_on(state, i, world)):
            raise Broken("sleeps beside what it waits for, and nobody will wake it", state)


def _check_cache(client: Client, at_start: int, world: World) -> None:
    if client.used < min(client.floor, at_start):
        raise Broken("gave back what its floor guarantees", client)
    if client.used < min(at_start, world.budget - sum(world.needs)) and not world.limit_changes:
        raise Broken("gave back more than all others lacked", client)


def _is_bell_coming(state: State) -> bool:
    """Whether somebody is past a change and not past the bell, or died there and is not yet reaped."""
    return state.reaper[0] != "look" or any(
        client.at in RINGING
        or client.at in ("back", "granted")
        or (client.at == "dead" and client.marked)
        or (client.collided and client.at in ("look", "add", "check", "own", "scan"))
        for client in state.clients
    )


def _could_go_on(state: State, i: int, world: World) -> bool:
    me = state.clients[i]
    others = [max(c.used, c.floor) for j, c in enumerate(state.clients) if j != i]
    if world.needs[i]:
        return world.needs[i] <= min(world.budget - sum(others), me.limit) - me.used
    if any(c.at in TENTATIVE for c in state.clients):
        return False  # what is added may be taken back, which rings
    wants = [max(0, c.want_to - max(c.used, c.floor)) for c in state.clients]
    return asked_of(me, sum(others) + sum(wants) + max(me.used, me.floor), world) > 0


def explore(world: World, protocol: Protocol | None = None, most_states: int = 400_000) -> int:
    """Visit every reachable state; how many there are. Broken with the state that breaks a promise."""
    rules = protocol or Protocol()
    first = start(world)
    numbers = {first: 0}
    before: list[list[int]] = [[]]
    queue = deque([first])
    while queue:
        state = queue.popleft()
        check(state, world)
        number = numbers[state]
        for after in successors(state, world, rules):
            found = numbers.get(after)
            if found is None:
                if len(numbers) == most_states:
                    raise ValueError(f"more than {most_states} states: make the world smaller")
                found = numbers[after] = len(before)
                before.append([])
                queue.append(after)
            before[found].append(number)
    check_progress(numbers, before, world)
    return len(numbers)


def check_progress(numbers: dict[State, int], before: list[list[int]], world: World) -> None:
    """From every state in which a client waits a way leads to one in which it has what it waits for."""
    for i, need in enumerate(world.needs):
        reaching = {n for state, n in numbers.items() if need and state.clients[i].at == "hold"}
        queue = deque(reaching)
        while queue:
            for earlier in before[queue.popleft()]:
                if earlier not in reaching:
                    reaching.add(earlier)
                    queue.append(earlier)
        for state, n in numbers.items():
            me = state.clients[i]
            if not need or n in reaching or me.at not in WAITING:
                continue
            if need <= min(
                me.limit, world.budget - sum(c.floor for j, c in enumerate(state.clients) if j != i)
            ):
                raise Broken(f"client {i} waits for ever", state)
