"""Virtual time has one order: by time, then kind, then the order asked for."""

from itertools import combinations

import pytest

from prism.sim.loop import Kind, Loop


@pytest.mark.parametrize(("first", "second"), list(combinations(Kind, 2)))
def test_ties_go_by_kind(first: Kind, second: Kind) -> None:
    seen: list[Kind] = []
    loop = Loop()
    loop.at(1.0, second, lambda: seen.append(second))
    loop.at(1.0, first, lambda: seen.append(first))
    loop.run_while(lambda: True)
    assert seen == [first, second]


def test_equal_kinds_go_in_the_order_asked_for() -> None:
    seen: list[int] = []
    loop = Loop()
    for i in (3, 1, 2):
        loop.at(1.0, Kind.TIMER, lambda i=i: seen.append(i))  # type: ignore[misc]
    loop.at(0.5, Kind.EXPIRY, lambda: seen.append(0))
    loop.run_while(lambda: True)
    assert seen == [0, 3, 1, 2]
    assert loop.now_s == 1.0


def test_the_past_is_refused_and_stopping_stops() -> None:
    loop = Loop()
    loop.at(1.0, Kind.TIMER, lambda: None)
    loop.at(2.0, Kind.TIMER, lambda: None)
    loop.run_while(lambda: loop.now_s < 1.0)
    assert loop.now_s == 1.0
    with pytest.raises(ValueError, match="past"):
        loop.at(0.5, Kind.TIMER, lambda: None)
