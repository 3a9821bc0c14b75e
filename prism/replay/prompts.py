"""Prompts of about a given number of tokens that a prefix cache cannot answer.

Words are drawn at random from the 1,262 of `vocabulary.txt`, so two prompts share no more than a chance
prefix; prompts of one repeated word would be prefix-cache hits for 99 % of their tokens and measure nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

# Without the model's tokenizer a word counts as one token: right for real models' vocabularies, where these
# common words are single tokens, within a few percent (SmolLM2: 1.01 tokens per word).
TOKENS_PER_UNKNOWN_WORD = 1


class PromptMaker:
    """Makes prompts for one model.

    With the model's `tokenizer.json` each word's tokens are counted once, and a prompt has exactly the asked
    number where the tokenizer splits at spaces (all byte-level BPE tokenizers do).
    """

    def __init__(self, tokenizer_file: Path | None = None, seed: int = 0) -> None:
        """`tokenizer_file`: a Hugging Face `tokenizer.json`; reading it needs the package `tokenizers`.

        Raises ValueError when it cannot be read.
        """
        self._random = random.Random(seed)  # noqa: S311 (prompts, no secrets)
        words = vocabulary()
        count = _counter(tokenizer_file)
        self._words = [(f" {word}", count(f" {word}")) for word in words]
        self._short = [word for word, tokens in self._words if tokens == 1] or [self._words[0][0]]

    def prompt(self, tokens: int) -> str:
        """A text of `tokens` tokens (at least one word)."""
        parts: list[str] = []
        missing = tokens
        while missing > 0:
            word, cost = self._random.choice(self._words)
            if cost > missing:
                word, cost = self._random.choice(self._short), 1
            parts.append(word)
            missing -= cost
        return "".join(parts) or self._short[0]


def vocabulary() -> Sequence[str]:
    """The words prompts are made of."""
    return resources.files("prism.replay").joinpath("vocabulary.txt").read_text("utf-8").split()


def _counter(tokenizer_file: Path | None) -> Callable[[str], int]:
    if tokenizer_file is None:
        return lambda _: TOKENS_PER_UNKNOWN_WORD
    try:
        from tokenizers import Tokenizer  # optional: only exact lengths need it

        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{tokenizer_file}: not a readable tokenizer: {error}") from error

    def count(text: str) -> int:
        return max(1, len(tokenizer.encode(text, add_special_tokens=False).ids))

    return count
