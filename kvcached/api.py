"""Prism's memory interface (arXiv 2505.04021, table 3), usable without any engine.

For KV caches: :func:`alloc_kvcache`, :func:`free_kvcache`, :func:`alloc_kv`, :func:`free_kv`. Beneath them,
for any
tensor: :func:`alloc_virtual_tensor`, :func:`free_virtual_tensor`, :func:`map`, :func:`unmap`.

Every cache and virtual tensor is a client of its device's ledger, so processes share one budget and ``kvctl
list`` shows them. Arguments left out come from the environment (see :mod:`kvcached.config`). Not thread-safe
per object.

Example::

    import torch
    import kvcached

    cache = kvcached.alloc_kvcache(layers=2, rows=1_000_000, row_shape=(8, 64), dtype=torch.bfloat16)
    rows = kvcached.alloc_kv(cache, 300)  # from here on these 300 rows have memory, in every layer
    cache.k[0][rows] = torch.ones(300, 8, 64, dtype=torch.bfloat16)
    print(f"{cache.mapped_bytes >> 10} KiB mapped of {cache.geometry.reservation_bytes >> 20} MiB reserved")
    kvcached.free_kv(cache, rows)
    kvcached.free_kvcache(cache)
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from kvcached import tensors
from kvcached._core import LedgerClient, VirtualRange
from kvcached.backends import open_backend
from kvcached.config import Config
from kvcached.errors import Misuse
from kvcached.kv_pool import KVCachePool
from kvcached.ledgers import open_ledger

if TYPE_CHECKING:
    from kvcached.layout import Layout
    from kvcached.tensors import Dtype, Tensor


def alloc_kvcache(
    *,
    layers: int,
    rows: int,
    row_shape: tuple[int, ...],
    v_row_shape: tuple[int, ...] | None = None,
    latent: bool = False,
    dtype: Dtype | str = "float16",
    layout: Layout = "per_layer",
    device: str = "cpu",
    name: str | None = None,
    page_bytes: int | None = None,
    row_multiple: int = 1,
    warm_rows: int | None = None,
    warm_bytes: int = 0,
    floor_bytes: int | None = None,
    limit_bytes: int | None = None,
    ledger_path: str | None = None,
    budget_bytes: int | None = None,
) -> KVCachePool:
    """Reserve addresses for K and V of every layer; memory comes with :func:`alloc_kv`.

    Args:
        layers: number of layers; each gets one K and one V tensor.
        rows: token slots that can be in use at once.
        row_shape: one token's K in one layer, usually ``(heads, head_dim)``.
        v_row_shape: the same for V; as K when None.
        latent: a layer keeps one row for both, as MLA does; there is no V.
        dtype: element type, a torch dtype or its name.
        layout: ``per_layer`` (contiguous tensors) or ``token_major`` (strided ones, smaller steps).
        device: ``cpu``, ``cuda`` or ``cuda:<index>``.
        name: shown by ``kvctl list``; at most 47 bytes.
        page_bytes: the widest piece of one tensor that gets memory at once.
        row_multiple: pages hold a multiple of so many rows.
        warm_rows: free rows that keep their memory; one page of rows when None.
        warm_bytes: at most so much free memory is kept ready for bursts by a thread; 0 for none.
        floor_bytes: guaranteed to this cache.
        limit_bytes: most this cache may hold.
        ledger_path: the file of the shared budget.
        budget_bytes: of the device's ledger; all its users must agree.

    Returns a pool with ``.k`` and ``.v``, one tensor per layer, ``(rows, *row_shape)``.

    Raises:
        Unavailable: no such device. LedgerRefused: the floors do not fit. OutOfMemory: no room for the
        padding page.
    """
    config = _settings(
        ledger_path=ledger_path,
        budget_bytes=budget_bytes,
        name=name,
        limit_bytes=limit_bytes,
        page_bytes=page_bytes,
        floor_bytes=floor_bytes,
    )
    backend = open_backend(config, device)
    return KVCachePool(
        backend,
        layers=layers,
        rows=rows,
        row_shape=row_shape,
        v_row_shape=v_row_shape,
        latent=latent,
        dtype=dtype,
        layout=layout,
        client=_register(config, device),
        page_bytes=config.page_bytes,
        page_policy=config.page_policy,
        row_multiple=row_multiple,
        warm_rows=warm_rows,
        warm_bytes=warm_bytes,
    )


def free_kvcache(cache: KVCachePool) -> None:
    """Give back all memory and credit of a cache; idempotent."""
    cache.close()


def alloc_kv(cache: KVCachePool, rows: int) -> Tensor:
    """Row numbers, int64 ``(rows,)``, that now have memory in every layer.

    Raises OutOfMemory, state unchanged.
    """
    return cache.alloc(rows)


def free_kv(cache: KVCachePool, rows: object) -> None:
    """Return rows; pages that become empty are unmapped. Raises Misuse for rows that are not allocated."""
    cache.free(rows)


class VirtualTensor:
    """A tensor over a bare reservation: no part has memory until :func:`map` gives it some."""

    __slots__ = ("_mapped_pages", "_range", "tensor")

    def __init__(self, memory: VirtualRange, tensor: Tensor) -> None:
        self._range: VirtualRange | None = memory
        self._mapped_pages: set[int] = set()
        self.tensor: Tensor | None = tensor
        """The tensor; None once freed. Touch only the bytes that are mapped."""

    @property
    def memory(self) -> VirtualRange:
        """The reservation: base_address, nbytes, page_bytes, mapped_bytes. Misuse once freed."""
        if self._range is None:
            raise Misuse("this virtual tensor is freed: make a new one")
        return self._range

    def map(self, offset_bytes: int, nbytes: int) -> None:
        """See :func:`map`."""
        self.memory.map(offset_bytes, nbytes)
        self._mapped_pages |= self._pages(offset_bytes, nbytes)

    def unmap(self, offset_bytes: int, nbytes: int) -> None:
        """See :func:`unmap`."""
        self.memory.unmap(offset_bytes, nbytes)
        self._mapped_pages -= self._pages(offset_bytes, nbytes)

    def export_page(self, offset_bytes: int) -> tuple[int, int]:
        """A new file descriptor, yours to close, and where in it the mapped page at ``offset_bytes`` begins.

        Another process that gets the descriptor (by inheritance or over a socket) maps the same memory: on
        the host with ``mmap``, where one descriptor serves the whole tensor and a page lies at its own
        offset; on CUDA with ``cuMemImportFromShareableHandle``. It must not touch pages that are unmapped
        here: they would come back as zeros that no budget knows of.

        Raises Unavailable if the tensor was not made ``exportable``.
        """
        return self.memory.export_page(offset_bytes)

    def free(self) -> None:
        """Give back memory and credit; addresses go with the last view of the tensor. Idempotent."""
        if self._range is None:
            return
        page_bytes = self._range.page_bytes
        for page in sorted(self._mapped_pages):
            self.unmap(page * page_bytes, page_bytes)
        self._range = self.tensor = None

    def _pages(self, offset_bytes: int, nbytes: int) -> set[int]:
        page_bytes = self.memory.page_bytes
        return set(range(offset_bytes // page_bytes, (offset_bytes + nbytes) // page_bytes))


def alloc_virtual_tensor(
    shape: tuple[int, ...],
    dtype: Dtype | str = "float16",
    *,
    device: str = "cpu",
    name: str | None = None,
    page_bytes: int | None = None,
    limit_bytes: int | None = None,
    ledger_path: str | None = None,
    budget_bytes: int | None = None,
    exportable: bool = False,
) -> VirtualTensor:
    """Reserve addresses for a tensor of ``shape``, rounded up to whole pages; no memory yet.

    With ``exportable``, mapped pages can be given to other processes: :meth:`VirtualTensor.export_page`.

    Raises Unavailable, LedgerRefused or Misuse as :func:`alloc_kvcache` does.
    """
    config = _settings(
        ledger_path=ledger_path,
        budget_bytes=budget_bytes,
        name=name,
        limit_bytes=limit_bytes,
        page_bytes=page_bytes,
    )
    backend = open_backend(config, device, exportable=exportable)
    element = tensors.resolve_dtype(dtype)
    page = config.page_bytes or backend.capabilities.default_page_bytes
    nbytes = -(-math.prod(shape) * element.itemsize // page) * page
    client = _register(config, device)
    memory = VirtualRange(backend, nbytes, page, client)
    client.publish(range_base=memory.base_address, range_bytes=memory.nbytes)
    tensor = tensors.tensor_over(memory.base_address, tuple(shape), element, device, memory)
    return VirtualTensor(memory, tensor)


def free_virtual_tensor(tensor: VirtualTensor) -> None:
    """Give back memory and credit of a virtual tensor; idempotent."""
    tensor.free()


def map(tensor: VirtualTensor, offset_bytes: int, nbytes: int) -> None:  # noqa: A001 - the paper's name
    """Put memory under ``[offset, offset + nbytes)``: whole pages that have none.

    OutOfMemory leaves everything as it was.
    """
    tensor.map(offset_bytes, nbytes)


def unmap(tensor: VirtualTensor, offset_bytes: int, nbytes: int) -> None:
    """Take the memory under ``[offset, offset + nbytes)`` away: whole pages that have some. Content goes."""
    tensor.unmap(offset_bytes, nbytes)


# ---- shared by both columns --------------------------------------------------------------------------------


def _settings(
    *,
    ledger_path: str | None,
    budget_bytes: int | None,
    name: str | None,
    limit_bytes: int | None,
    page_bytes: int | None,
    floor_bytes: int | None = None,
) -> Config:
    """The environment's settings with the arguments that were given laid over them."""
    config = Config.from_env()
    return replace(
        config,
        ledger_path=config.ledger_path if ledger_path is None else ledger_path,
        budget_bytes=config.budget_bytes if budget_bytes is None else budget_bytes,
        name=config.name if name is None else name,
        limit_bytes=config.limit_bytes if limit_bytes is None else limit_bytes,
        page_bytes=config.page_bytes if page_bytes is None else page_bytes,
        floor_bytes=config.floor_bytes if floor_bytes is None else floor_bytes,
    )


def _register(config: Config, device: str) -> LedgerClient:
    return open_ledger(config, device).register(
        name=config.name or f"pid-{os.getpid()}",
        floor_bytes=config.floor_bytes or 0,
        limit_bytes=config.limit_bytes,
        priority=config.priority,
    )
