"""The comparison behind test_through_prism can say no."""

import math
from typing import Any

import pytest

from tests.correctness.answers import Answer, answer_from, parting_gap

REFERENCE = Answer(("a", "b", "c"), (5.0, 0.25, 4.0))


def answer(*tokens: str) -> Answer:
    return Answer(tokens, (1.0,) * len(tokens))


def test_equal_answers_part_nowhere() -> None:
    assert parting_gap(REFERENCE, answer("a", "b", "c")) == 0.0


def test_the_gap_is_that_of_the_first_difference() -> None:
    assert parting_gap(REFERENCE, answer("a", "x", "y")) == 0.25
    assert parting_gap(REFERENCE, answer("x", "b", "c")) == 5.0


@pytest.mark.parametrize("tokens", [(), ("a",), ("a", "b"), ("a", "b", "c", "d")])
def test_an_empty_cut_off_or_overlong_answer_is_no_near_tie(tokens: tuple[str, ...]) -> None:
    assert parting_gap(REFERENCE, answer(*tokens)) == math.inf


def test_after_a_near_tie_another_length_is_no_fault() -> None:
    assert parting_gap(REFERENCE, answer("a", "x")) == 0.25


def document(tokens: list[str], top_logprobs: list[dict[str, float]]) -> dict[str, Any]:
    return {"choices": [{"logprobs": {"tokens": tokens, "top_logprobs": top_logprobs}}]}


def test_gaps_are_best_minus_second_best() -> None:
    answered = answer_from(document(["a", "b"], [{"a": -0.5, "z": -2.0}, {"b": -0.1}]))
    assert answered == Answer(("a", "b"), (1.5, 0.0))


def test_a_token_without_log_probabilities_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        answer_from(document(["a", "b"], [{"a": -0.5, "z": -2.0}]))
