"""One elastic KV cache: tensors per layer over reserved addresses, with memory only under the rows in use."""

from __future__ import annotations

import operator
import weakref
from typing import TYPE_CHECKING, Self

from kvcached import tensors
from kvcached._core import Backend, KvPool, LedgerClient, PoolStats
from kvcached.errors import KvcachedError, Misuse, OutOfMemory
from kvcached.layout import KVCacheSpec

if TYPE_CHECKING:
    from types import TracebackType

    from kvcached.config import PagePolicy
    from kvcached.layout import Layout
    from kvcached.tensors import Dtype, Tensor

_MOST = 2**63 - 1
"""The largest count that the compiled core takes."""

_paid_for: weakref.WeakKeyDictionary[LedgerClient, weakref.ref[KvPool]] = weakref.WeakKeyDictionary()


class KVCachePool:
    """The tensors of every layer, with memory only under rows that are in use.

    A context manager; not thread-safe (one scheduler thread owns a pool). Rows are token slots: row ``r`` of
    every tensor has memory exactly while ``r`` is allocated (or lies on a page kept warm). A process may have
    several pools (a sliding window beside full attention, say), each with a client of its own.

    Args:
        backend: where memory comes from, ``Backend.host()`` or ``Backend.cuda(index)``.
        client: the ledger client that pays for this pool alone; None for a pool without a budget.
        page_policy: ``best_fit`` or ``most_filled``: which page a request goes to, see :class:`KvPool`.
        warm_rows: free rows that keep their memory after :meth:`free`; one page of rows when None.
        warm_bytes: at most so much free memory is kept ready by a thread, as much as recent bursts took;
            0 for no such thread. :meth:`trim` with less than that sends it to rest.
        gives_back: a thread, the same one, gives free memory back, within milliseconds, when the limit is
            lowered or the ledger asks for it; False where an engine does so itself, between its steps.
        layers, rows, ... reserved_rows: see :class:`KVCacheSpec`.

    Raises:
        Misuse: impossible geometry, or a client that pays for another pool already. OutOfMemory: no credit or
        memory for the padding page. LedgerRefused: it does not fit beside the floors of others.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        layers: int,
        rows: int,
        row_shape: tuple[int, ...],
        v_row_shape: tuple[int, ...] | None = None,
        latent: bool = False,
        dtype: Dtype | str = "float16",
        layout: Layout = "per_layer",
        client: LedgerClient | None = None,
        page_bytes: int | None = None,
        page_policy: PagePolicy = "best_fit",
        row_multiple: int = 1,
        reserved_rows: int = 1,
        warm_rows: int | None = None,
        warm_bytes: int = 0,
        gives_back: bool = True,
    ) -> None:
        self.spec = KVCacheSpec(
            layers=layers,
            rows=rows,
            row_shape=row_shape,
            v_row_shape=v_row_shape,
            latent=latent,
            dtype=dtype,
            layout=layout,
            page_bytes=page_bytes,
            row_multiple=row_multiple,
            reserved_rows=reserved_rows,
        )
        self._capabilities = backend.capabilities
        self._client = client
        self._asked_warm_rows = None if warm_rows is None else _require_count("warm_rows", warm_rows)
        self._is_wanting = False
        self.geometry = self.spec.geometry(self._capabilities)
        _require_free(client)
        pool = KvPool(
            backend,
            self.geometry,
            client,
            page_policy=page_policy,
            warm_bytes=_require_count("warm_bytes", warm_bytes),
            gives_back=gives_back,
        )
        # The padding page is never given back, so nobody may count on it.
        self._raise_floor(pool.mapped_bytes)
        self._pool: KvPool | None = pool
        self._k: tuple[Tensor, ...] = ()
        self._v: tuple[Tensor, ...] = ()
        self._make_tensors(pool)
        if client is not None:
            _paid_for[client] = weakref.ref(pool)
        pool.publish()

    @property
    def k(self) -> tuple[Tensor, ...]:
        """K (or the latent rows) of each layer, ``(rows, *row_shape)``.

        Rows that are not allocated must not be touched.
        """
        return self._k

    @property
    def v(self) -> tuple[Tensor, ...]:
        """V of each layer, ``(rows, *v_row_shape)``; nothing in a latent cache."""
        return self._v

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
                f"{stats.rows_obtainable} more can be had now: {self._open().explain_refusal(rows)}; "
                "free rows, or raise the limit or the budget"
            )
        return taken

    def try_alloc(self, rows: int) -> Tensor | None:
        """:meth:`alloc` that answers a refusal by budget, limit or rows with None.

        Either way the ledger asks others for what was refused, for some seconds: ask again to get it.
        """
        pool = self._open()
        rows = _require_count("rows", rows)
        ids = pool.alloc(rows)
        if ids is None:
            if not pool.grow(rows):
                self._want(pool.lacking_bytes(rows))
                return None
            ids = pool.alloc(rows)
            if ids is None:
                raise KvcachedError(f"internal error: {rows} rows were backed and then not found")
        if self._is_wanting:
            self._want(0)
        pool.publish()
        return tensors.as_index(ids)

    def free(self, rows: object) -> None:
        """Give rows back: tensor, array or sequence, in any order.

        Empty pages beyond the warm rows are unmapped, and all of them while the ledger asks for memory.
        Raises Misuse for a row that is not allocated; nothing has changed then.
        """
        pool = self._open()
        pool.free(tensors.as_rows(rows))
        is_asked = self._client is not None and self._client.asked_bytes() > 0
        pool.trim(0 if is_asked else max(self._warm_rows(), pool.warm_pages * self.geometry.rows_per_page))
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

    def realign(self, spec: KVCacheSpec) -> None:
        """Lay another model's rows over the same addresses: what lets an engine serve a second model.

        ``k`` and ``v`` are new tensors; those of before must not be used any more. Raises Misuse while rows
        are in use or where the reservation is too small, OutOfMemory or LedgerRefused where the new padding
        page cannot be had; the old rows then stay.
        """
        pool = self._open()
        geometry = spec.geometry(self._capabilities)
        floor_bytes = 0 if self._client is None else self._client.floor_bytes
        self._raise_floor(geometry.pinned_bytes)
        try:
            pool.realign(geometry)
        except KvcachedError:
            if self._client is not None:
                self._client.set_floor(floor_bytes)
            raise
        self.spec, self.geometry = spec, geometry
        self._make_tensors(pool)
        pool.publish()

    def check_invariants(self) -> None:
        """Raise KvcachedError when the core's books do not balance (for tests)."""
        self._open().check_invariants()

    def close(self) -> None:
        """Give all memory back; idempotent.

        The addresses (and the padding page) go when the last tensor over them is gone, so a tensor that
        outlives the pool never points at somebody else's memory.
        """
        if self._is_wanting:
            self._want(0)
        pool, self._pool, self._client = self._pool, None, None
        self._k = self._v = ()
        if pool is not None:
            pool.clear()
            pool.publish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _warm_rows(self) -> int:
        return self.geometry.rows_per_page if self._asked_warm_rows is None else self._asked_warm_rows

    def _want(self, nbytes: int) -> None:
        """Tell the ledger what was refused, so that others give it back; it lapses by itself."""
        if self._client is not None:
            self._client.set_want(nbytes)
            self._is_wanting = nbytes > 0

    def _raise_floor(self, floor_bytes: int) -> None:
        if self._client is not None and self._client.floor_bytes < floor_bytes:
            self._client.set_floor(floor_bytes)

    def _make_tensors(self, pool: KvPool) -> None:
        """K and V of every layer; tensors of one stripe share its storage, which keeps the pool alive."""
        kind, index = self._capabilities.kind, self._capabilities.device
        device = "cpu" if kind == "host" else f"cuda:{index}"
        spec, rows = self.spec, self.geometry.rows
        stripes: dict[int, Tensor] = {}
        made: list[list[Tensor]] = [[], []]
        for part, shape in enumerate(spec.parts):
            for place in (spec.place(part, layer) for layer in range(spec.layers)):
                if place.stripe not in stripes:
                    stripes[place.stripe] = tensors.bytes_over(
                        pool.stripe_address(place.stripe), rows * place.stride_bytes, device, pool
                    )
                made[part].append(
                    tensors.rows_of(
                        stripes[place.stripe],
                        (rows, *shape),
                        spec.element,
                        offset_bytes=place.offset_bytes,
                        stride_bytes=place.stride_bytes,
                    )
                )
        k, v = made
        self._k, self._v = tuple(k), tuple(v)

    def _open(self) -> KvPool:
        if self._pool is None:
            raise Misuse("this KV cache is closed: make a new one")
        return self._pool


def _require_count(what: str, value: object) -> int:
    """A number of rows or bytes, from whatever counts as an integer."""
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise Misuse(f"{what} is {value!r}: pass a whole number") from None
    if not 0 <= count <= _MOST:
        raise Misuse(f"{what} is {count}: pass 0 or more, and no more than {_MOST}")
    return count


def _require_free(client: LedgerClient | None) -> None:
    """A client publishes one range, its rows and their floor: two pools would overwrite each other's."""
    holder = None if client is None else _paid_for.get(client)
    if holder is not None and holder() is not None:
        raise Misuse("this client pays for another pool that still lives: register one for each pool")
