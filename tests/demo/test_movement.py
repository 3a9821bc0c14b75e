"""The demo's claim is checked by a function that can say no."""

import pytest

from demo.movement import MemorySeries, find_problems

BUDGET = 90


def series(**mapped: list[int]) -> MemorySeries:
    length = len(next(iter(mapped.values())))
    return MemorySeries(tuple(float(i) for i in range(length)), mapped)


def test_memory_that_went_round_has_no_problems() -> None:
    moved = series(a=[0, 60, 60, 5, 40], b=[0, 0, 10, 70, 5], c=[40, 5, 5, 5, 0])
    assert find_problems(moved, BUDGET) == []


def test_nothing_sampled_is_a_problem() -> None:
    assert find_problems(MemorySeries((), {}), BUDGET) == ["nothing was sampled"]
    assert find_problems(MemorySeries((), {"a": []}), BUDGET) == ["nothing was sampled"]


def test_one_sample_over_the_budget_is_found_and_placed() -> None:
    problems = find_problems(series(a=[0, 50, 5, 5], b=[0, 41, 50, 60]), BUDGET)
    assert any("91 bytes were mapped at 1.0 s, 1 over the budget" in problem for problem in problems)


def test_exactly_the_budget_is_not_over_it() -> None:
    assert not any("over the budget" in p for p in find_problems(series(a=[45, 1], b=[45, 89]), BUDGET))


@pytest.mark.parametrize("peak", [0, 29, 30])
def test_a_peak_of_a_third_or_less_is_named(peak: int) -> None:
    problems = find_problems(series(a=[0, peak, 0], b=[40, 0, 40]), BUDGET)
    assert any(problem.startswith("a: mapped bytes never exceeded a third") for problem in problems)


def test_memory_that_stays_is_named() -> None:
    problems = find_problems(series(a=[0, 60, 30, 12], b=[0, 0, 40, 60]), BUDGET)
    assert any(problem.startswith("a: mapped bytes never fell below a fifth") for problem in problems)


def test_a_low_before_the_peak_does_not_count_as_a_fall() -> None:
    problems = find_problems(series(a=[0, 0, 60], b=[60, 60, 0]), BUDGET)
    assert any(problem.startswith("a: mapped bytes never fell") for problem in problems)


def test_a_fall_that_gave_nobody_anything_is_named() -> None:
    problems = find_problems(series(a=[0, 60, 2, 2], b=[50, 20, 20, 20]), BUDGET)
    assert any("no other model's rose meanwhile" in problem for problem in problems)


def test_a_second_fall_counts_when_the_first_helped_nobody() -> None:
    values = series(a=[60, 2, 60, 2], b=[0, 0, 0, 60])
    assert not any(problem.startswith("a:") for problem in find_problems(values, BUDGET))


def test_a_torn_sample_proves_no_overrun_and_a_whole_one_still_does() -> None:
    mapped = series(a=[0, 50, 50, 5], b=[0, 45, 44, 60]).mapped_bytes
    times_s = (0.0, 1.0, 2.0, 3.0)
    torn_once = MemorySeries(times_s, mapped, (False, True, False, False))
    problems = find_problems(torn_once, BUDGET)
    assert any("94 bytes were mapped at 2.0 s, 4 over the budget" in problem for problem in problems)
    torn_twice = MemorySeries(times_s, mapped, (False, True, True, False))
    problems = find_problems(torn_twice, BUDGET)
    assert not any("budget of" in problem or "torn" in problem for problem in problems)
    assert torn_twice.whole().totals() == [0, 65]
    assert torn_twice.torn_samples == 2


@pytest.mark.parametrize("torn", [(True, True, True, False), (True,) * 4])
def test_more_than_half_torn_is_a_problem_of_its_own(torn: tuple[bool, ...]) -> None:
    mapped = series(a=[0, 50, 50, 5], b=[0, 45, 44, 60]).mapped_bytes
    problems = find_problems(MemorySeries((0.0, 1.0, 2.0, 3.0), mapped, torn), BUDGET)
    assert any(f"{sum(torn)} of 4 samples are torn" in problem for problem in problems)
