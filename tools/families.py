"""Random-weight models of several architectures: small enough to make in a second, real enough to serve.

One ``Shape`` describes the KV cache and the compute; a family turns it into a transformers configuration.
Every family here is full attention with MHA or GQA, which SGLang keeps in a ``MHATokenToKVPool``, and was
served by real SGLang 0.5.21 on the CPU (attention backend torch_native, no triton).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from tools.chat_tokenizer import save_tokenizer
from tools.model_folder import make_folder, recipe_key

BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a random model. ``kv_heads * head_dim`` per layer decides the KV cache, the rest compute."""

    layers: int = 2
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 256
    vocab_size: int = 512
    context_tokens: int = 4096

    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V over all layers for one token in bfloat16."""
        return self.layers * self.kv_heads * self.head_dim * 2 * BF16_BYTES

    def common(self) -> dict[str, Any]:
        """The configuration keys every family shares, under their Hugging Face names."""
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.context_tokens,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            "tie_word_embeddings": False,
        }


def _simple(config: str, model: str, **extra: Any) -> Callable[[Shape], torch.nn.Module]:
    """A family whose transformers classes take the common keys as they are."""

    def build(shape: Shape) -> torch.nn.Module:
        module: torch.nn.Module = getattr(transformers, model)(
            getattr(transformers, config)(**shape.common(), **extra)
        )
        return module

    return build


def _without_head_dim(config: str, model: str, **extra: Any) -> Callable[[Shape], torch.nn.Module]:
    """A family whose head size is always hidden / heads; refuses a shape that says otherwise."""

    def build(shape: Shape) -> torch.nn.Module:
        if shape.heads * shape.head_dim != shape.hidden:
            raise ValueError(
                f"{config} takes head_dim = hidden / heads = {shape.hidden // shape.heads}, "
                f"not {shape.head_dim}"
            )
        keys = {key: value for key, value in shape.common().items() if key != "head_dim"}
        module: torch.nn.Module = getattr(transformers, model)(getattr(transformers, config)(**keys, **extra))
        return module

    return build


FAMILIES: dict[str, Callable[[Shape], torch.nn.Module]] = {
    "llama": _simple("LlamaConfig", "LlamaForCausalLM"),
    "qwen3": _simple("Qwen3Config", "Qwen3ForCausalLM"),
    "mistral": _simple("MistralConfig", "MistralForCausalLM", sliding_window=None),
    "qwen2": _without_head_dim("Qwen2Config", "Qwen2ForCausalLM"),
    "olmo2": _without_head_dim("Olmo2Config", "Olmo2ForCausalLM"),
    "granite": _without_head_dim("GraniteConfig", "GraniteForCausalLM"),
}


def make_random_model(folder: Path, family: str, shape: Shape, seed: int = 3) -> bool:
    """Make a bfloat16 model of ``family`` with tokenizer and chat template. False when it was already there.

    Raises ValueError for an unknown family, naming the known ones.
    """
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}; known: {', '.join(FAMILIES)}")
    recipe: dict[str, object] = {"family": family, "shape": asdict(shape), "seed": seed}
    here = Path(__file__)
    key = recipe_key(recipe, here, here.with_name("chat_tokenizer.py"))

    def fill(work: Path) -> None:
        torch.manual_seed(seed)
        model = FAMILIES[family](shape).to(torch.bfloat16)
        tokenizer = save_tokenizer(work, shape.vocab_size, shape.context_tokens)
        _silence_unprintable(model, tokenizer.get_vocab())
        model.save_pretrained(str(work))

    return make_folder(folder, key, recipe, fill)


def _silence_unprintable(model: torch.nn.Module, vocab: dict[str, int]) -> None:
    """Zero the output rows of special tokens and non-ASCII bytes.

    A random model would otherwise emit pieces of UTF-8 characters, which a server holds back until they
    are complete: the first *visible* token would come later than the first token. A zero logit never wins
    a greedy choice against thousands of random ones.
    """
    visible = {token_id for token, token_id in vocab.items() if token.isascii() or token.startswith("Ġ")}
    special = set(range(7))
    head = model.get_output_embeddings().weight
    with torch.no_grad():
        for row in range(head.shape[0]):
            if row in special or row not in visible:
                head[row].zero_()
