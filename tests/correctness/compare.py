"""Where two runs of the same prompts part, and how close the choice was there."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.correctness.engine import Completion


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which a run leaves the reference."""

    prompt: int
    position: int
    gap: float
    """The reference's top-2 log-probability gap at that position."""


def differences(reference: Sequence[Completion], other: Sequence[Completion]) -> list[Difference]:
    """One entry per prompt whose tokens differ; the shorter of two equal beginnings differs at its end."""
    found = []
    for prompt, (expected, got) in enumerate(zip(reference, other, strict=True)):
        if expected.output_ids != got.output_ids:
            pairs = zip(expected.output_ids, got.output_ids, strict=False)
            position = next(
                (index for index, (a, b) in enumerate(pairs) if a != b),
                min(len(expected.output_ids), len(got.output_ids)),
            )
            # Past the reference's last token there is no gap to be near: an extra token is a plain error.
            gap = expected.gaps[position] if position < len(expected.gaps) else float("inf")
            found.append(Difference(prompt, position, gap))
    return found
