"""The KV tensors and their allocator, as SGLang asks for them at start."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kvcached import _core, backends, errors, ledgers
from kvcached.config import Config
from kvcached.kv_pool import KVCachePool
from kvcached.sglang.allocator import ElasticTokenAllocator
from kvcached.sglang.capacity import Capacity


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What one engine process holds: its place in the ledger and the pool beneath its KV tensors."""

    ledger: _core.Ledger
    client: _core.LedgerClient
    pool: _core.KvPool


_ATTRIBUTE = "kvcached_memory"

WARM_BUDGET_DIVISOR = 16
"""An engine keeps at most this part of the device's budget mapped ahead of need where nothing else is set."""


def memory_of(kv_pool: Any) -> EngineMemory:
    """The elastic memory beneath an SGLang KV pool.

    Raises Unavailable for a pool that kvcached did not make.
    """
    memory: EngineMemory | None = getattr(kv_pool, _ATTRIBUTE, None)
    if memory is None:
        raise errors.Unavailable(
            f"kvcached cannot make {type(kv_pool).__name__} elastic: this release supports plain MHA/GQA "
            "models (MHATokenToKVPool). Remedy: serve this model with KVCACHED_ENABLE=0"
        )
    return memory


def create_buffers(original: Callable[..., None], kv_pool: Any) -> None:
    """Hook: give `MHATokenToKVPool` K and V tensors of shape (size + page_size, heads, dim), one per layer.

    Row 0 is SGLang's padding row and stays backed; no other row is until it is allocated.
    """
    _refuse_unsupported_pool(kv_pool)
    device = torch.device(kv_pool.device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    config = Config.from_env()
    ledger = ledgers.open_ledger(config, str(device))
    client = ledger.register(
        name=config.name or "sglang",
        floor_bytes=config.floor_bytes or 0,
        limit_bytes=config.limit_bytes,
        priority=config.priority,
    )
    k_shape, v_shape = kv_pool._kv_buffer_shapes()  # noqa: SLF001 - the one place that knows the shapes
    cache = KVCachePool(
        backends.open_backend(config, str(device)),
        layers=kv_pool.layer_num,
        rows=kv_pool.size,
        row_shape=k_shape[1:],
        v_row_shape=v_shape[1:],
        dtype=kv_pool.store_dtype,
        client=client,
        page_bytes=config.page_bytes,
        page_policy=config.page_policy,
        reserved_rows=kv_pool.page_size,
        warm_bytes=ledger.budget_bytes // WARM_BUDGET_DIVISOR
        if config.warm_bytes is None
        else config.warm_bytes,
        gives_back=False,  # `Capacity` does: only between steps is it known which rows are free
    )
    # The tensors end with the last whole page; SGLang expects exactly the rows it asked for.
    kv_pool.k_buffer = [k[: k_shape[0]] for k in cache.k]
    kv_pool.v_buffer = [v[: v_shape[0]] for v in cache.v]
    setattr(kv_pool, _ATTRIBUTE, EngineMemory(ledger, client, cache.core))


def build_allocator(original: Callable[..., Any], configurator: Any, **arguments: Any) -> Any:
    """Hook: the allocator over an elastic pool. Any other pool stops the start, loudly."""
    from kvcached.sglang.verify import verify_hooks

    verify_hooks()
    kv_pool = arguments["token_to_kv_pool"]
    memory = memory_of(kv_pool)
    if arguments["token_to_kv_pool_allocator"] is not None:
        raise errors.Unavailable(
            "kvcached does not support a second worker on one KV pool (speculative decoding) yet. Remedy: "
            "serve this model with KVCACHED_ENABLE=0"
        )
    if Config.from_env().floor_bytes is None:
        # Only here is the model's context length at hand; until now nothing but the padding page was claimed.
        memory.client.set_floor(
            _default_floor_bytes(memory.pool.geometry, configurator.model_config.context_len)
        )
    return ElasticTokenAllocator(
        arguments["sizes"].max_total_num_tokens,
        dtype=configurator.kv_cache_dtype,
        device=configurator.device,
        kvcache=kv_pool,
        capacity=Capacity(memory.pool, memory.client, time.monotonic),
    )


def _default_floor_bytes(geometry: _core.Geometry, context_rows: int) -> int:
    """The padding page and one request of maximal length, in whole pages."""
    rows = min(geometry.rows, context_rows + geometry.reserved_rows)
    return -(-rows // geometry.rows_per_page) * geometry.page_set_bytes


def _refuse_unsupported_pool(kv_pool: Any) -> None:
    """Raise Unavailable, naming the setting, for variants whose rows are not laid out as we map them."""
    unsupported = {
        "a page size above 1": (kv_pool.page_size != 1, f"--page-size {kv_pool.page_size}", "--page-size 1"),
        "this KV layout": (kv_pool.kv_cache_layout != "nhd", kv_pool.kv_cache_layout, "the NHD layout"),
        "the memory saver": (
            kv_pool.memory_saver_adapter.enabled,
            "--enable-memory-saver",
            "no memory saver",
        ),
        "a custom memory pool": (
            kv_pool.enable_custom_mem_pool,
            "SGLANG_MOONCAKE_CUSTOM_MEM_POOL",
            "unset it",
        ),
    }
    for what, (is_on, value, remedy) in unsupported.items():
        if is_on:
            raise errors.Unavailable(
                f"kvcached does not support {what} yet ({value}). Remedy: use {remedy}, or serve this model "
                "with KVCACHED_ENABLE=0"
            )
