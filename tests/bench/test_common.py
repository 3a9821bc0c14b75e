"""The arithmetic that every bench's figures rest on."""

import statistics

import pytest

from bench.common.bootstrap import bootstrap_median_interval
from bench.common.report import Measured


def test_interval_of_equal_values_is_that_value() -> None:
    assert bootstrap_median_interval([[2.5] * 7]) == (2.5, 2.5)


def test_interval_holds_the_median_and_narrows_with_more_values() -> None:
    few, many = [float(i % 10) for i in range(10)], [float(i % 10) for i in range(200)]
    few_low, few_high = bootstrap_median_interval([few])
    many_low, many_high = bootstrap_median_interval([many])
    assert few_low < statistics.median(few) < few_high
    assert many_low <= statistics.median(many) <= many_high
    assert many_high - many_low < few_high - few_low


def test_interval_is_symmetric_and_widens_with_confidence() -> None:
    values = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    low, high = bootstrap_median_interval([values])
    mirrored_low, mirrored_high = bootstrap_median_interval([[-value for value in values]])
    assert (mirrored_low, mirrored_high) == (-high, -low)
    assert bootstrap_median_interval([values], 0.5)[0] > low


def test_what_differs_between_groups_widens_the_interval() -> None:
    """Thirty values are not thirty independent ones when each start of a process has a pace of its own."""
    groups = [[pace + 0.001 * number for number in range(10)] for pace in (0.9, 1.0, 1.1)]
    low, high = bootstrap_median_interval(groups)
    pooled_low, pooled_high = bootstrap_median_interval([[value for group in groups for value in group]])
    assert low < 0.91 < pooled_low < pooled_high < 1.1 < high


@pytest.mark.parametrize("groups", [[], [[]], [[1.0], []]])
def test_nothing_measured_is_an_error(groups: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        bootstrap_median_interval(groups)


def test_what_was_planned_and_not_measured_counts_as_skipped() -> None:
    assert Measured({}, planned=5, made=3).skipped == 2
    with pytest.raises(ValueError, match="miscounts"):
        _ = Measured({}, planned=5, made=6).skipped
