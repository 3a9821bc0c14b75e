"""Random-weight models of several architectures: small enough to make in a second, real enough to serve.

One ``Shape`` describes the KV cache and the compute; a family turns it into a transformers configuration.
Every family here was served by real SGLang 0.5.21 on the CPU (attention backend torch_native, no triton):
full attention with MHA or GQA (a ``MHATokenToKVPool``), dense or with experts, multi-head latent attention
(a ``MLATokenToKVPool``), and full attention beside a sliding window (a ``SWAKVPool``).
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

    def latent_bytes_per_token(self) -> int:
        """The same with multi-head latent attention, as ``_latent`` sets it up."""
        return self.layers * (self.latent_dim + self.rotary_dim) * BF16_BYTES

    @property
    def latent_dim(self) -> int:
        """Compressed K and V of one token in a layer."""
        return 2 * self.head_dim

    @property
    def rotary_dim(self) -> int:
        """The part of a latent row that carries the position."""
        return self.head_dim // 2

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


def _make(config: str, model: str, keys: dict[str, Any]) -> torch.nn.Module:
    module: torch.nn.Module = getattr(transformers, model)(getattr(transformers, config)(**keys))
    return module


def _simple(config: str, model: str, **extra: Any) -> Callable[[Shape], torch.nn.Module]:
    """A family whose transformers classes take the common keys as they are."""
    return lambda shape: _make(config, model, shape.common() | extra)


def _without_head_dim(config: str, model: str) -> Callable[[Shape], torch.nn.Module]:
    """A family whose head size is always hidden / heads; refuses a shape that says otherwise."""

    def build(shape: Shape) -> torch.nn.Module:
        if shape.heads * shape.head_dim != shape.hidden:
            raise ValueError(
                f"{config} takes head_dim = hidden / heads = {shape.hidden // shape.heads}, "
                f"not {shape.head_dim}"
            )
        return _make(
            config, model, {key: value for key, value in shape.common().items() if key != "head_dim"}
        )

    return build


_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def _latent(shape: Shape) -> torch.nn.Module:
    """DeepSeek-V2: one compressed row per token and layer. All layers dense: its experts need a compiler."""
    keys = {key: value for key, value in shape.common().items() if key != "head_dim"}
    keys |= {
        "num_key_value_heads": shape.heads,
        "kv_lora_rank": shape.latent_dim,
        "q_lora_rank": None,
        "qk_nope_head_dim": shape.head_dim,
        "qk_rope_head_dim": shape.rotary_dim,
        "v_head_dim": shape.head_dim,
        "first_k_dense_replace": shape.layers,
        "moe_layer_freq": 1,
        "n_routed_experts": 4,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 2.0,
            "original_max_position_embeddings": shape.context_tokens // 2,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    }
    return _make("DeepseekV2Config", "DeepseekV2ForCausalLM", keys)


def _windowed(shape: Shape) -> torch.nn.Module:
    """Mellum: layers with a sliding window and layers without, in turn, all with experts."""
    kinds = ["sliding_attention" if layer % 2 == 0 else "full_attention" for layer in range(shape.layers)]
    keys = shape.common() | _EXPERTS | {"sliding_window": 64, "layer_types": kinds}
    return _make("MellumConfig", "MellumForCausalLM", keys)


LATENT_FAMILIES = frozenset({"deepseek_v2"})

FAMILIES: dict[str, Callable[[Shape], torch.nn.Module]] = {
    "llama": _simple("LlamaConfig", "LlamaForCausalLM"),
    "qwen3": _simple("Qwen3Config", "Qwen3ForCausalLM"),
    "mistral": _simple("MistralConfig", "MistralForCausalLM", sliding_window=None),
    "qwen2": _without_head_dim("Qwen2Config", "Qwen2ForCausalLM"),
    "olmo2": _without_head_dim("Olmo2Config", "Olmo2ForCausalLM"),
    "qwen3_moe": _simple("Qwen3MoeConfig", "Qwen3MoeForCausalLM", **_EXPERTS),
    "deepseek_v2": _latent,
    "mellum": _windowed,
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
