"""Every interleaving of the ledger's protocol in small worlds; and the checks find what they look for."""

from __future__ import annotations

import pytest

from tests.kvcached.ledger_explorer import Broken, explore
from tests.kvcached.ledger_model import Protocol, World

TWO = World(budget=2, needs=(2, 1))
THREE = World(budget=1, needs=(1, 1, 1), holders=(0,), may_die=False, comes_back=False)
FLOORS = World(budget=3, needs=(3, 1), floors=(2, 0))
SETTINGS = World(
    budget=3,
    needs=(2, 2),
    reads_lines_in_two=True,
    may_die=False,
    floor_changes=((0, 2), (0, 0), (0, 2)),
)
LIMITS = World(budget=3, needs=(2, 1), floors=(1, 0), limit_changes=((0, 1), (1, 0), (0, 3), (1, 1)))
RECLAIM = World(budget=3, needs=(0, 1), caches=(3, 0), floors=(1, 0), wanting=(1,))
RACE = World(budget=3, needs=(0, 2, 1), caches=(2, 0, 0), wanting=(1,), may_die=False, comes_back=False)
RECALL = World(
    budget=3, needs=(0, 2), caches=(3, 0), floors=(1, 0), wanting=(1,), limit_changes=((0, 2), (0, 3), (0, 1))
)
WORLDS = {
    "two": TWO,
    "three": THREE,
    "floors": FLOORS,
    "settings": SETTINGS,
    "limits": LIMITS,
    "reclaim": RECLAIM,
    "race": RACE,
    "limited cache": RECALL,
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())
def test_no_interleaving_breaks_a_promise(world: World) -> None:
    assert explore(world) > 500


@pytest.mark.parametrize(
    ("world", "protocol", "finding"),
    [
        (TWO, Protocol(looks_again_after_adding=False), "granted of"),
        (TWO, Protocol(rings_after_taking_back=False), "nobody will wake it"),
        (TWO, Protocol(clears_flag_before_counting=False), "nobody will wake it"),
        (TWO, Protocol(reaper_wakes_in_any_case=False), "nobody will wake it"),
        (TWO, Protocol(reaper_keeps_mark_until_rung=False), "nobody will wake it"),
        (TWO, Protocol(flags_before_sleeping=False), "nobody will wake it"),
        (SETTINGS, Protocol(floors_are_versioned=False), "granted of"),
        (SETTINGS, Protocol(reads_floor_before_used=False), "granted of"),
        (RECLAIM, Protocol(wants_are_levels=False), "more than all others lacked"),
        (RACE, Protocol(rings_for_wants_after_a_grant=False), "nobody will wake it"),
    ],
    ids=lambda value: (
        next((name for name, kept in vars(value).items() if not kept), None)
        if isinstance(value, Protocol)
        else ""
    ),
)
def test_a_protocol_with_one_step_missing_is_found_out(
    world: World, protocol: Protocol, finding: str
) -> None:
    with pytest.raises(Broken, match=finding):
        explore(world, protocol)
