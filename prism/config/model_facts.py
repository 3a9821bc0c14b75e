"""What a model folder's config.json says about KV memory and token ids, and the floor that follows.

No torch, no transformers.

The floor of a model is the padding page plus one request of maximal length, rounded to whole pages with
the same `Geometry` the engine registers, so that the last running request can always finish.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from prism.config.schema import Config, EngineSettings

HOST_GRANULARITY_BYTES = 4096
HOST_PAGE_BYTES = 64 * 2**10
CUDA_PAGE_BYTES = 2 * 2**20
PADDING_ROWS = 1  # SGLang's row 0 takes the writes of padding tokens
_MAX_CONFIG_BYTES = 2**20
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class ModelFolderError(ValueError):
    """The model cannot be served from this folder; the message says why and what would help."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """KV geometry of one model: `layers` times a K and a V row of `row_bytes` for each token.

    Its token ids are 0 to `vocab_size` - 1.
    """

    layers: int
    row_bytes: int
    context_length: int
    vocab_size: int

    @property
    def kv_bytes_per_token(self) -> int:
        """KV bytes of one token over all layers."""
        return 2 * self.layers * self.row_bytes


@dataclass(frozen=True, slots=True)
class KvPlan:
    """What one engine will register on a device of a given kind."""

    facts: ModelFacts
    max_request_tokens: int
    page_set_bytes: int
    floor_bytes: int


def read_model_facts(folder: Path, engine: EngineSettings) -> ModelFacts:
    """Facts of the model in `folder`; raises `ModelFolderError`."""
    config = _text_config(_read_json(folder))
    try:
        layers = _positive(config, "num_hidden_layers")
        heads = _positive(config, "num_attention_heads")
        kv_heads = _positive(config, "num_key_value_heads") if config.get("num_key_value_heads") else heads
        head_dim = (
            _positive(config, "head_dim")
            if config.get("head_dim")
            else _positive(config, "hidden_size") // heads
        )
        own_context = _positive(config, "max_position_embeddings")
        vocab_size = _positive(config, "vocab_size")
    except ModelFolderError as error:
        raise ModelFolderError(f"{folder / 'config.json'}: {error}") from None
    if config.get("kv_lora_rank"):
        raise ModelFolderError(
            f"{folder}: multi-head latent attention (kv_lora_rank) is not supported by kvcached yet; "
            "serve a model with multi-head or grouped-query attention"
        )
    return ModelFacts(
        layers=layers,
        row_bytes=kv_heads * head_dim * _kv_dtype_bytes(engine.dtype),
        context_length=engine.context_length or own_context,
        vocab_size=vocab_size,
    )


def plan_kv(facts: ModelFacts, engine: EngineSettings, device_kind: str) -> KvPlan:
    """Page geometry and default floor of the engine on a device of `device_kind` ("host" or "cuda")."""
    from kvcached._core import Geometry  # compiled; imported late so that `prism --help` needs no extension

    page_bytes = CUDA_PAGE_BYTES if device_kind == "cuda" else HOST_PAGE_BYTES
    geometry = Geometry(
        rows=engine.max_total_tokens + PADDING_ROWS,
        row_bytes=[facts.row_bytes] * (2 * facts.layers),
        granularity_bytes=CUDA_PAGE_BYTES if device_kind == "cuda" else HOST_GRANULARITY_BYTES,
        page_bytes=page_bytes,
        reserved_rows=PADDING_ROWS,
    )
    max_request_tokens = min(facts.context_length, engine.max_total_tokens)
    pages = -(-(PADDING_ROWS + max_request_tokens) // geometry.rows_per_page)
    return KvPlan(
        facts=facts,
        max_request_tokens=max_request_tokens,
        page_set_bytes=geometry.page_set_bytes,
        floor_bytes=min(pages, geometry.pages) * geometry.page_set_bytes,
    )


def device_kind_of(config: Config, device: str | None) -> str:
    """Kind of a model's device; an unplaced model is planned for the kind of the first device."""
    return config.devices[0].kind if device is None else config.device(device).kind


def _read_json(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise ModelFolderError(f"{folder}: no such folder; check `path`, or make or download the model first")
    path = folder / "config.json"
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(_MAX_CONFIG_BYTES))
    except FileNotFoundError:
        raise ModelFolderError(
            f"{folder}: holds no config.json; it is no Hugging Face model folder"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(document, dict):
        raise ModelFolderError(f"{path}: holds no JSON object")
    return document


def _text_config(document: dict[str, Any]) -> dict[str, Any]:
    """Multimodal models keep the language model's figures one level down."""
    inner = document.get("text_config")
    return {**document, **inner} if isinstance(inner, dict) else document


def _positive(config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelFolderError(f"`{key}` is {value!r}; expected a whole number above 0")
    return value


def _kv_dtype_bytes(dtype: str) -> int:
    """SGLang keeps KV in the model's dtype, and with `auto` runs float32 models in a 16-bit one."""
    return 2 if dtype == "auto" else _DTYPE_BYTES[dtype]
