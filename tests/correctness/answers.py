"""Answers of the OpenAI completions route, and where two of them part."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """Tokens as text, and for each the log-probability by which the best token beat the second best."""

    tokens: tuple[str, ...]
    gaps: tuple[float, ...]


def answer_from(document: dict[str, Any]) -> Answer:
    """What the route answered with `logprobs` of 2. ValueError where a token came without them."""
    logprobs = document["choices"][0]["logprobs"]
    gaps = []
    for _, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        best, *rest = sorted(top.values(), reverse=True)
        gaps.append(best - rest[0] if rest else 0.0)  # two tokens with one text: as near a tie as can be
    return Answer(tuple(logprobs["tokens"]), tuple(gaps))


def parting_gap(reference: Answer, other: Answer) -> float:
    """The reference's top-2 gap at the first token that differs; 0 where the answers are equal.

    Infinite where one is only the beginning of the other: an answer that was cut off is no near tie.
    """
    for expected, got, gap in zip(reference.tokens, other.tokens, reference.gaps, strict=False):
        if expected != got:
            return gap
    return 0.0 if len(reference.tokens) == len(other.tokens) else float("inf")
