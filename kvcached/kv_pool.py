"""One elastic KV cache: tensors per layer over reserved addresses, with memory only under the rows in use."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

from kvcached import tensors
from kvcached._core import Backend, Geometry, KvPool, LedgerClient, PoolStats
from kvcached.errors import KvcachedError, Misuse, OutOfMemory

if TYPE_CHECKING:
    from types import TracebackType

    from kvcached.tensors import Dtype, Tensor


class KVCachePool:
    """K and V tensors of every layer, with memory only under rows that are in use.

    A context manager; not thread-safe (one scheduler thread owns a pool). Rows are token slots: row ``r`` of
    every layer's K and V has memory exactly while ``r`` is allocated (or lies on a page kept warm). The first
    ``reserved_rows`` rows are padding: always backed, never handed out.

    Args:
        backend: where memory comes from, ``Backend.host()`` or ``Backend.cuda(index)``.
        layers: number of layers; each has one K and one V tensor.
        rows: most rows that can be allocated at once (rounded up to whole pages).
        row_shape: shape of one row of K, usually ``(heads, head_dim)``.
        v_row_shape: shape of one row of V; as K when None.
        dtype: element type, as a torch dtype or its name.
        client: the ledger client that pays; None for a pool without a budget.
        page_bytes: widest stripe of a page; the backend's default when None.
        row_multiple: rows per page are a multiple of this (an engine's block size).
        warm_rows: free rows that keep their memory after :meth:`free`; one page of rows when None.
        warm_bytes: at most so much free memory is kept ready by a thread, as much as recent bursts took;
            0 for no such thread. :meth:`trim` with less than that sends it to rest.

    Raises:
        Misuse: impossible geometry. OutOfMemory: no credit or memory for the padding page. LedgerRefused: the
        padding page does not fit beside the floors of others.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        layers: int,
        rows: int,
        row_shape: tuple[int, ...],
        v_row_shape: tuple[int, ...] | None = None,
        dtype: Dtype | str = "float16",
        client: LedgerClient | None = None,
        page_bytes: int | None = None,
        row_multiple: int = 1,
        reserved_rows: int = 1,
        warm_rows: int | None = None,
        warm_bytes: int = 0,
    ) -> None:
        element = tensors.resolve_dtype(dtype)
        shapes = (tuple(row_shape), tuple(row_shape if v_row_shape is None else v_row_shape))
        self.geometry = _geometry(
            backend,
            layers=layers,
            rows=rows,
            shapes=shapes,
            element=element,
            page_bytes=page_bytes,
            row_multiple=row_multiple,
            reserved_rows=reserved_rows,
        )
        self._warm_rows = self.geometry.rows_per_page if warm_rows is None else warm_rows
        pool = KvPool(backend, self.geometry, client, warm_bytes=warm_bytes)
        if client is not None and client.floor_bytes < pool.mapped_bytes:
            # The padding page is never given back, so nobody may count on it.
            client.set_floor(pool.mapped_bytes)
        self._pool: KvPool | None = pool
        device = "cpu" if backend.capabilities.kind == "host" else f"cuda:{backend.capabilities.device}"
        self._tensors = tuple(
            tensors.tensor_over(
                pool.stripe_address(stripe),
                (self.geometry.rows, *shapes[stripe // layers]),
                element,
                device,
                pool,
            )
            for stripe in range(2 * layers)
        )
        pool.publish()

    @property
    def k(self) -> tuple[Tensor, ...]:
        """K of each layer, ``(rows, *row_shape)``; rows that are not allocated must not be touched."""
        return self._tensors[: len(self._tensors) // 2]

    @property
    def v(self) -> tuple[Tensor, ...]:
        """V of each layer, ``(rows, *v_row_shape)``."""
        return self._tensors[len(self._tensors) // 2 :]

    @property
    def core(self) -> KvPool:
        """The compiled pool beneath, for an engine that decides itself when to grow and trim."""
        return self._open()

    @property
    def mapped_bytes(self) -> int:
        """Physical memory under the pool now, in bytes; 0 once closed."""
        return 0 if self._pool is None else self._pool.mapped_bytes

    def alloc(self, rows: int) -> Tensor:
        """Take rows, getting credit and memory for them first; int64 row numbers on the CPU, ``(rows,)``.

        Raises OutOfMemory when budget, limit, rows or the system refuse; nothing has changed then.
        """
        taken = self.try_alloc(rows)
        if taken is None:
            stats = self.stats()
            raise OutOfMemory(
                f"no room for {rows} more rows: {stats.rows_used} of {stats.rows_total} rows are in use and "
                f"{stats.rows_obtainable} more can be had now ({stats.mapped_bytes} bytes mapped); "
                "free rows, or raise the limit or the budget"
            )
        return taken

    def try_alloc(self, rows: int) -> Tensor | None:
        """:meth:`alloc` that answers a refusal by budget, limit or rows with None."""
        pool = self._open()
        if rows < 0:
            raise Misuse(f"cannot allocate {rows} rows: pass 0 or more")
        ids = pool.alloc(rows)
        if ids is None:
            if not pool.grow(rows):
                return None
            ids = pool.alloc(rows)
            if ids is None:
                raise KvcachedError(f"internal error: {rows} rows were backed and then not found")
        pool.publish()
        return tensors.as_index(ids)

    def free(self, rows: object) -> None:
        """Give rows back: tensor, array or sequence, in any order.

        Empty pages beyond the warm rows are unmapped. Raises Misuse for a row that is not allocated; nothing
        has changed then.
        """
        pool = self._open()
        pool.free(tensors.as_rows(rows))
        pool.trim(max(self._warm_rows, pool.warm_pages * self.geometry.rows_per_page))
        pool.publish()

    def trim(self, keep_rows: int = 0) -> int:
        """Unmap empty pages as long as ``keep_rows`` free rows stay backed; bytes given back."""
        pool = self._open()
        released_bytes = pool.trim(keep_rows)
        pool.publish()
        return released_bytes

    def stats(self) -> PoolStats:
        """Frozen counters of this pool."""
        return self._open().stats()

    def check_invariants(self) -> None:
        """Raise KvcachedError when the core's books do not balance (for tests)."""
        self._open().check_invariants()

    def close(self) -> None:
        """Give all memory back; idempotent.

        The addresses (and the padding page) go when the last tensor over them is gone, so a tensor that
        outlives the pool never points at somebody else's memory.
        """
        pool, self._pool, self._tensors = self._pool, None, ()
        if pool is not None:
            pool.clear()
            pool.publish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> KvPool:
        if self._pool is None:
            raise Misuse("this KV cache is closed: make a new one")
        return self._pool


def _geometry(
    backend: Backend,
    *,
    layers: int,
    rows: int,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    element: Dtype,
    page_bytes: int | None,
    row_multiple: int,
    reserved_rows: int,
) -> Geometry:
    """Stripes ordered K of layers 0..n-1, then V of layers 0..n-1."""
    if layers < 1 or rows < 1:
        raise Misuse(f"a KV cache of {layers} layers and {rows} rows: both must be 1 or more")
    row_bytes = [math.prod(shape) * element.itemsize for shape in shapes for _ in range(layers)]
    return Geometry(
        rows=rows + reserved_rows,
        row_bytes=row_bytes,
        granularity_bytes=backend.capabilities.granularity_bytes,
        page_bytes=page_bytes or backend.capabilities.default_page_bytes,
        row_multiple=row_multiple,
        reserved_rows=reserved_rows,
    )
