"""A small byte-level BPE tokenizer with a chat template, trained offline on the replay client's words."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = Path(__file__).resolve().parent.parent / "prism" / "replay" / "vocabulary.txt"

# Ids follow this order, and the model makers rely on the first three (bos 0, eos 1, pad 2).
SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(vocab_size: int) -> Tokenizer:
    """Train a tokenizer of at most ``vocab_size`` ids (at least 300: 256 bytes and the special tokens).

    It is trained on the words that the replay client draws, so with 2,048 ids or more most of
    those words are one token, as they are for a real model.
    """
    if vocab_size < 300:
        raise ValueError(f"vocab_size is {vocab_size}; the byte alphabet and the special tokens need 300")
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def save_tokenizer(folder: Path, vocab_size: int, context_tokens: int) -> Tokenizer:
    """Write a Hugging Face tokenizer with chat template into ``folder`` and return the raw tokenizer."""
    tokenizer = train_tokenizer(vocab_size)
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token="<|bos|>",  # noqa: S106 (no password)
        eos_token="<|eos|>",  # noqa: S106
        pad_token="<|pad|>",  # noqa: S106
        model_max_length=context_tokens,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(str(folder))
    return tokenizer


def _corpus() -> list[str]:
    """Sentences of the vocabulary in a fixed shuffled order: each word three times after a space."""
    words = VOCABULARY.read_text().split()
    shuffle = random.Random(7)
    sentences = []
    for _ in range(3):
        shuffle.shuffle(words)
        sentences += [" " + " ".join(words[i : i + 12]) + "." for i in range(0, len(words), 12)]
    return sentences
