"""Twenty prompts of many kinds and lengths, as token ids, with how much to generate for each."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

_QUESTIONS = (
    "What is the capital of France?",
    "Explain in one sentence why the sky is blue.",
    "Write a haiku about autumn leaves.",
    "List three prime numbers greater than ten.",
    "Translate 'good morning' into Spanish.",
    "Who wrote the play Hamlet?",
    "Give me a recipe for pancakes in two steps.",
    "What does HTTP stand for?",
    "Summarise the plot of Cinderella.",
    "Is 91 a prime number? Answer with yes or no.",
)
_TEXTS = (
    "Once upon a time",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "1, 2, 3, 4, 5, 6,",
    '{"name": "Ada", "born":',
    "The three largest oceans are the",
    "import numpy as np\n\nx = np.",
    "a",
)
_PARAGRAPH = (
    "The river rose quickly after the storm, and by the second morning the lower fields lay under water. "
    "Farmers moved their animals to the hill, the ferry stopped, and the bridge by the mill was closed. "
)
_REPEATS = (3, 7, 14)
"""Long prompts: repeated until they span several prefill chunks of `CHUNK_TOKENS`."""

CHUNK_TOKENS = 256
COUNT = len(_QUESTIONS) + len(_TEXTS) + len(_REPEATS)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids and the most tokens to generate."""

    input_ids: tuple[int, ...]
    max_new_tokens: int


def prompts_for(model: Path) -> list[Prompt]:
    """The twenty prompts in this model's own vocabulary."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    chats = [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in _QUESTIONS]
    # They begin alike, so that pages of any size have a prefix to share.
    long = [f"{_PARAGRAPH}Chapter {count}. {_PARAGRAPH * (count - 1)}In the end" for count in _REPEATS]
    # Long ones between short ones, so that every batch mixes lengths.
    texts = [text for group in zip(chats, [*_TEXTS, *long], strict=True) for text in group]
    return [
        Prompt(tuple(tokenizer.encode(text).ids), 8 + 3 * (index % 4)) for index, text in enumerate(texts)
    ]
