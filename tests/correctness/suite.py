"""The runs that every engine of a comparison makes."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.correctness.engine import Completion, Engine
from tests.correctness.prompts import Prompt


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """Answers in the order of the prompts, whatever the order of arrival was."""

    alone: tuple[Completion, ...]
    """One request at a time; possibly only the first few prompts."""
    together: tuple[Completion, ...]
    """All at once in the order of the prompts; the engine runs 16 of them at a time."""
    shuffled: tuple[Completion, ...]
    """All at once in another, fixed order."""


def run_suite(engine: Engine, prompts: Sequence[Prompt], alone: int) -> SuiteRun:
    """All three runs, each from an empty prefix cache; the first `alone` prompts one at a time."""
    in_order = list(range(len(prompts)))
    shuffled = list(in_order)
    random.Random(7).shuffle(shuffled)
    engine.flush_cache()
    singly = tuple(engine.generate(prompt.input_ids, prompt.max_new_tokens) for prompt in prompts[:alone])
    return SuiteRun(singly, run_together(engine, prompts, in_order), run_together(engine, prompts, shuffled))


def run_together(engine: Engine, prompts: Sequence[Prompt], order: Sequence[int]) -> tuple[Completion, ...]:
    """All prompts in one message in the given order, from an empty prefix cache."""
    engine.flush_cache()
    arriving = [prompts[index] for index in order]
    answers = engine.generate_together(
        [prompt.input_ids for prompt in arriving], [prompt.max_new_tokens for prompt in arriving]
    )
    by_prompt = dict(zip(order, answers, strict=True))
    return tuple(by_prompt[index] for index in range(len(prompts)))
