"""The KV tensors and their allocator, as SGLang asks for them at start."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kvcached import _core, errors, ledgers, tensors
from kvcached.config import Config
from kvcached.sglang.allocator import ElasticTokenAllocator
from kvcached.sglang.capacity import Capacity


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What one engine process holds: its place in the ledger and the pool beneath its KV tensors."""

    ledger: _core.Ledger
    client: _core.LedgerClient
    pool: _core.KvPool


_ATTRIBUTE = "kvcached_memory"


def memory_of(kv_pool: Any) -> EngineMemory | None:
    """The elastic memory beneath an SGLang KV pool, None for a stock one."""
    return getattr(kv_pool, _ATTRIBUTE, None)


def create_buffers(original: Callable[..., None], kv_pool: Any) -> None:
    """Hook: give `MHATokenToKVPool` K and V tensors of shape (size + page_size, heads, dim), one per layer.

    Row 0 is SGLang's padding row and stays backed; no other row is until it is allocated.
    """
    _refuse_unsupported_pool(kv_pool)
    device = torch.device(kv_pool.device)
    config = Config.from_env()
    backend = _backend(device, config)
    capabilities = backend.capabilities
    k_shape, v_shape = kv_pool._kv_buffer_shapes()
    layers = kv_pool.layer_num
    shapes = [k_shape] * layers + [v_shape] * layers
    geometry = _core.Geometry(
        rows=k_shape[0],
        row_bytes=[shape[1] * shape[2] * kv_pool.store_dtype.itemsize for shape in shapes],
        granularity_bytes=capabilities.granularity_bytes,
        page_bytes=config.page_bytes or capabilities.default_page_bytes,
        reserved_rows=kv_pool.page_size,
    )
    ledger = ledgers.open_ledger(config, str(device))
    client = ledger.register(
        name=config.name or "sglang",
        floor_bytes=config.floor_bytes or 0,
        limit_bytes=config.limit_bytes,
        priority=config.priority,
    )
    pool = _core.KvPool(backend, geometry, client)
    pool.publish()
    memory = EngineMemory(ledger, client, pool)
    views = [
        tensors.tensor_over(
            pool.stripe_address(stripe), tuple(shape), kv_pool.store_dtype, str(device), owner=memory
        )
        for stripe, shape in enumerate(shapes)
    ]
    kv_pool.k_buffer, kv_pool.v_buffer = views[:layers], views[layers:]
    setattr(kv_pool, _ATTRIBUTE, memory)


def build_allocator(original: Callable[..., Any], configurator: Any, **arguments: Any) -> Any:
    """Hook: the allocator over an elastic pool. Any other pool stops the start, loudly."""
    from kvcached.sglang.verify import verify_hooks

    verify_hooks()
    kv_pool = arguments["token_to_kv_pool"]
    memory = memory_of(kv_pool)
    if memory is None or arguments["token_to_kv_pool_allocator"] is not None:
        raise errors.Unavailable(
            f"kvcached cannot make {type(kv_pool).__name__} elastic: this release supports one "
            "MHATokenToKVPool per engine (plain MHA/GQA models without a draft model). Remedy: serve this "
            "model with KVCACHED_ENABLE=0"
        )
    if Config.from_env().floor_bytes is None:
        # Only here is the model's context length at hand; until now nothing but the padding page was claimed.
        memory.client.set_floor(_default_floor_bytes(memory.pool.geometry, configurator.model_config.context_len))
    return ElasticTokenAllocator(
        arguments["sizes"].max_total_num_tokens,
        dtype=configurator.kv_cache_dtype,
        device=configurator.device,
        kvcache=kv_pool,
        capacity=Capacity(memory.pool, memory.client, time.monotonic),
    )


def _backend(device: torch.device, config: Config) -> _core.Backend:
    if device.type == "cpu":
        return _core.Backend.host(strict=config.host_strict)
    if device.type == "cuda":
        return _core.Backend.cuda(torch.cuda.current_device() if device.index is None else device.index)
    raise errors.Unavailable(
        f"kvcached has no backend for device {device}: use cpu or cuda, or set KVCACHED_ENABLE=0"
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
        "the memory saver": (kv_pool.memory_saver_adapter.enabled, "--enable-memory-saver", "no memory saver"),
        "a custom memory pool": (kv_pool.enable_custom_mem_pool, "SGLANG_MOONCAKE_CUSTOM_MEM_POOL", "unset it"),
    }
    for what, (is_on, value, remedy) in unsupported.items():
        if is_on:
            raise errors.Unavailable(
                f"kvcached does not support {what} yet ({value}). Remedy: use {remedy}, or serve this model "
                "with KVCACHED_ENABLE=0"
            )
