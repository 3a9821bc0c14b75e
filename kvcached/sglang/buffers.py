"""The KV tensors and their allocator, as SGLang asks for them at start."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kvcached import _core, backends, errors, ledgers
from kvcached.config import Config
from kvcached.kv_pool import KVCachePool
from kvcached.sglang.allocator import ElasticPagedAllocator, ElasticTokenAllocator
from kvcached.sglang.block_pool import BlockPool
from kvcached.sglang.capacity import Capacity


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What one engine process holds: its place in the ledger and the pool beneath its KV tensors."""

    ledger: _core.Ledger
    client: _core.LedgerClient
    pool: BlockPool


SUPPORTED_POOLS = ("MHATokenToKVPool", "MLATokenToKVPool")
"""MHA and GQA, and multi-head latent attention. Their subclasses keep more than these tensors."""

_ATTRIBUTE = "kvcached_memory"

WARM_BUDGET_DIVISOR = 16
"""An engine keeps at most this part of the device's budget mapped ahead of need where nothing else is set."""


def memory_of(kv_pool: Any) -> EngineMemory:
    """The elastic memory beneath an SGLang KV pool.

    Raises Unavailable for a pool that kvcached did not make.
    """
    memory: EngineMemory | None = getattr(kv_pool, _ATTRIBUTE, None)
    if memory is None:
        raise _not_elastic(kv_pool)
    return memory


def _not_elastic(kv_pool: Any) -> errors.Unavailable:
    return errors.Unavailable(
        f"kvcached cannot make {type(kv_pool).__name__} elastic: this release supports "
        f"{' and '.join(SUPPORTED_POOLS)}. Remedy: serve this model with KVCACHED_ENABLE=0"
    )


def create_buffers(original: Callable[..., None], kv_pool: Any) -> None:
    """Hook: give `MHATokenToKVPool` K and V of shape (size + page_size, heads, dim), each per layer."""
    k_shape, v_shape = kv_pool._kv_buffer_shapes()  # noqa: SLF001 - the one place that knows the shapes
    cache = _make_elastic(kv_pool, k_shape[1:], v_row_shape=v_shape[1:])
    kv_pool.k_buffer = [_flat(k, k_shape) for k in cache.k]
    kv_pool.v_buffer = [_flat(v, v_shape) for v in cache.v]


def create_latent_buffers(original: Callable[..., None], kv_pool: Any) -> None:
    """Hook: give `MLATokenToKVPool` one tensor of shape (size + page_size, 1, kv_cache_dim) per layer."""
    shape = (kv_pool.size + kv_pool.page_size, 1, kv_pool.kv_cache_dim)
    cache = _make_elastic(kv_pool, shape[1:], latent=True)
    kv_pool.kv_buffer = [_flat(rows, shape) for rows in cache.k]


def _make_elastic(
    kv_pool: Any,
    row_shape: tuple[int, ...],
    *,
    v_row_shape: tuple[int, ...] | None = None,
    latent: bool = False,
) -> KVCachePool:
    """A pool of blocks of `page_size` tokens, which pays through a place of its own in the ledger.

    Block 0 is SGLang's padding and stays backed; no other is until it is allocated.
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
    block = (kv_pool.page_size,)
    warm_bytes = config.warm_bytes
    cache = KVCachePool(
        backends.open_backend(config, str(device)),
        layers=kv_pool.layer_num,
        rows=kv_pool.size // kv_pool.page_size,
        row_shape=block + row_shape,
        v_row_shape=None if v_row_shape is None else block + v_row_shape,
        latent=latent,
        dtype=kv_pool.store_dtype,
        client=client,
        page_bytes=config.page_bytes,
        page_policy=config.page_policy,
        warm_bytes=ledger.budget_bytes // WARM_BUDGET_DIVISOR if warm_bytes is None else warm_bytes,
        gives_back=False,  # `Capacity` does: only between steps is it known which rows are free
    )
    memory = EngineMemory(ledger, client, BlockPool(cache.core, kv_pool.page_size))
    setattr(kv_pool, _ATTRIBUTE, memory)
    return cache


def _flat(blocks: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Rows instead of blocks of rows, as many as SGLang expects: the last page may hold some more."""
    return blocks.view(-1, *shape[1:])[: shape[0]]


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
        rows = kv_pool.page_size + min(memory.pool.rows_total, configurator.model_config.context_len)
        memory.client.set_floor(-(-rows // memory.pool.rows_per_page) * memory.pool.page_set_bytes)
    size = arguments["sizes"].max_total_num_tokens
    common = {
        "dtype": configurator.kv_cache_dtype,
        "device": configurator.device,
        "kvcache": kv_pool,
        "capacity": Capacity(memory.pool, memory.client, time.monotonic),
    }
    if kv_pool.page_size == 1:
        return ElasticTokenAllocator(size, **common)
    return ElasticPagedAllocator(size, kv_pool.page_size, **common)


def _refuse_unsupported_pool(kv_pool: Any) -> None:
    """Raise Unavailable, naming the setting, for variants whose rows are not laid out as we map them."""
    if type(kv_pool).__name__ not in SUPPORTED_POOLS:
        raise _not_elastic(kv_pool)
    unsupported = {
        "this KV layout": (_layout_of(kv_pool) != "nhd", _layout_of(kv_pool), "the NHD layout"),
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


def _layout_of(kv_pool: Any) -> str:
    """How SGLang orders heads and tokens; a latent row has no heads to order."""
    return getattr(kv_pool, "kv_cache_layout", "nhd")
