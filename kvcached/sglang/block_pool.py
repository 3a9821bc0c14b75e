"""The pool beneath an engine, counted in rows of one token also where it hands out blocks of several."""

import numpy as np
import numpy.typing as npt

from kvcached import _core


class BlockPool:
    """A `KvPool` whose rows are an engine's blocks: its pages, as SGLang calls what `--page-size` sets.

    Counts are in rows of one token; what is asked for is rounded up to whole blocks. Ids are blocks'.
    """

    def __init__(self, pool: _core.KvPool, rows_per_block: int = 1) -> None:
        self._pool = pool
        self._rows_per_block = rows_per_block

    @property
    def rows_per_page(self) -> int:
        """Rows that come and go with one page of memory."""
        return self._pool.geometry.rows_per_page * self._rows_per_block

    @property
    def page_set_bytes(self) -> int:
        """Memory of one page over all tensors."""
        return self._pool.geometry.page_set_bytes

    @property
    def rows_total(self) -> int:
        """Rows that can be handed out at all."""
        return self._pool.rows_total * self._rows_per_block

    @property
    def rows_used(self) -> int:
        """Rows of the blocks handed out."""
        return self._pool.rows_used * self._rows_per_block

    @property
    def rows_free_backed(self) -> int:
        """Rows that could be handed out without mapping a page."""
        return self._pool.rows_free_backed * self._rows_per_block

    @property
    def rows_obtainable(self) -> int:
        """Free rows after the largest growth that the ledger would grant now."""
        return self._pool.rows_obtainable * self._rows_per_block

    @property
    def rows_attainable(self) -> int:
        """The most rows that could ever be in use at once under limit, budget and floors of others."""
        return self._pool.rows_attainable * self._rows_per_block

    @property
    def warm_pages(self) -> int:
        """Pages worth keeping ready."""
        return self._pool.warm_pages

    @property
    def mapped_bytes(self) -> int:
        """Memory beneath the pool."""
        return self._pool.mapped_bytes

    def grow(self, rows: int) -> bool:
        """Back free blocks for `rows` rows, or nothing. OutOfMemory where the device refuses."""
        return self._pool.grow(self._blocks(rows))

    def alloc(self, blocks: int) -> npt.NDArray[np.int64] | None:
        """Ids of `blocks` backed blocks; None where too few are free. Maps nothing and asks nobody."""
        return self._pool.alloc(blocks)

    def free(self, ids: npt.NDArray[np.int64]) -> None:
        """Take blocks back; their pages stay backed."""
        self._pool.free(ids)

    def trim(self, keep_rows: int) -> int:
        """Unmap empty pages as long as so many free rows stay backed; bytes given back."""
        return self._pool.trim(self._blocks(keep_rows))

    def clear(self) -> None:
        """Take all blocks back and unmap all pages but the padding's."""
        self._pool.clear()

    def publish(self) -> None:
        """Show observers the present figures."""
        self._pool.publish()

    def check_invariants(self) -> None:
        """Raise KvcachedError where the books do not balance."""
        self._pool.check_invariants()

    def _blocks(self, rows: int) -> int:
        return -(-rows // self._rows_per_block)
