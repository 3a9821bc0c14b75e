"""The three questions about memory, answered by one owner on the scheduler's own thread.

(a) `attainable_rows`: could a request ever finish here?  Limit and ledger, whoever holds memory now.
(b) `secure` and `free_up`: can this step run?  The shortfall is met first, in the order grow (credit and
    backing, all or nothing), evict prefix cache, refuse.
(c) picking rows is `KvPool.alloc`: it maps nothing, asks nobody and after (b) cannot fail.

What the ledger does not give becomes a want in it, also where evicting this engine's own cache filled the
gap: a busy engine's cache is worth more than an idle one's. The ledger says what this engine should give
back itself, for others or because a limit was lowered, and it does so at `step_boundary`. Admission yields to
wants whose turn comes first; running requests do not. A refusal is retried when the ledger changes or after
`RETRY_S`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kvcached import _core
from kvcached.sglang.block_pool import BlockPool

RETRY_S = 0.25
"""A refusal is tried again at the latest after this many seconds, even if the ledger said nothing."""


WANT_S = 5.0
"""A want that is not renewed lapses after this many seconds: an engine that hangs stops nobody."""

_log = logging.getLogger(__name__)


class PrefixCache(Protocol):
    """What capacity needs of SGLang's prefix cache: how much could go, and making it go."""

    def evictable_rows(self) -> int:
        """Rows that no running request holds."""

    def evict(self, rows: int) -> None:
        """Evict at least `rows` rows, or all that is evictable."""


@dataclass(slots=True)
class Shortfall:
    """Rows that the ledger did not give, by who asked; the larger one is what the ledger hears."""

    admission_rows: int = 0
    decode_rows: int = 0

    @property
    def rows(self) -> int:
        """What others are told."""
        return max(self.admission_rows, self.decode_rows)


class Capacity:
    """Grows, shrinks and refuses for one KV pool.

    Single-threaded: the scheduler's thread owns it. `clock` returns seconds of a monotonic clock.
    """

    def __init__(self, pool: BlockPool, client: _core.LedgerClient, clock: Callable[[], float]) -> None:
        self.pool = pool
        self._client = client
        self._clock = clock
        self._shortfall = Shortfall()
        self._reserved_rows = 0
        self._lacking_rows = 0
        self._refused = False
        self._refused_at_s = 0.0
        self._refused_generation = -1
        self._has_warned = False
        self._page_set_bytes = pool.page_set_bytes
        self._rows_per_page = pool.rows_per_page

    def obtainable_rows(self, cache: PrefixCache) -> int:
        """Free rows this engine could have this instant: backed, claimable, or held by evictable cache."""
        return self.pool.rows_obtainable + cache.evictable_rows()

    def attainable_rows(self) -> int:
        """Most rows this engine could ever hold at once under its limit and the floors of the others."""
        return self.pool.rows_attainable

    def secure(self, rows: int, cache: PrefixCache) -> bool:
        """Whether `rows` rows can be handed out in this pass, counting cache that can still be evicted."""
        lacking_rows = self._grow_towards(rows, cache)
        self._lacking_rows = max(self._lacking_rows, lacking_rows)
        fits = lacking_rows <= cache.evictable_rows()
        self._refused |= not fits
        return fits

    def secure_backed(self, rows: int, cache: PrefixCache) -> bool:
        """As `secure`, with the cache evicted now: for rows that are needed over several passes.

        An engine that holds part of a prompt and waits for the rest may wait for one that does the same.
        """
        if not self.secure(rows, cache):
            return False
        cache.evict(rows - self.pool.rows_free_backed)
        fits = self.pool.rows_free_backed >= rows
        self._refused |= not fits
        return fits

    def free_up(self, rows: int, cache: PrefixCache) -> bool:
        """Make `rows` backed rows free, evicting cache where the ledger refuses. False leaves a want."""
        lacking_rows = self._grow_towards(rows, cache)
        if 0 < lacking_rows <= cache.evictable_rows():
            cache.evict(lacking_rows)
        self._set_shortfall(decode_rows=lacking_rows)
        return self.pool.rows_free_backed >= rows

    def refuse(self, missing_rows: int) -> bool:
        """Note that a candidate lacks `missing_rows` beyond all that is obtainable; False, to be returned.

        What could be claimed still has to be left free by others, so it is part of what is wanted.
        """
        claimable_rows = self.pool.rows_obtainable - self.pool.rows_free_backed
        self._lacking_rows = max(self._lacking_rows, missing_rows + claimable_rows)
        self._refused = True
        return False

    def reserve(self, rows: int) -> None:
        """Keep `rows` free backed rows from being trimmed: the rest of a prompt prefilled in chunks."""
        self._reserved_rows = rows

    @property
    def refused(self) -> bool:
        """Whether the last admission pass was refused for want of memory."""
        return self._refused

    def may_retry(self) -> bool:
        """Whether a refused admission is worth another try: the ledger changed, or time passed."""
        return (
            self._client.generation != self._refused_generation
            or self._clock() - self._refused_at_s >= RETRY_S
        )

    def begin_pass(self) -> None:
        """A new admission pass: what earlier passes were refused no longer counts."""
        self._client.yielding = True
        self._lacking_rows = 0
        self._refused = False

    def end_pass(self) -> None:
        """Let others see what the ledger did not give in this pass, and note when, for the retry."""
        self._client.yielding = False
        self._set_shortfall(admission_rows=self._lacking_rows)
        self._refused_at_s = self._clock()
        self._refused_generation = self._client.generation

    def trim(self, *, idle: bool) -> None:
        """Return empty pages and their credit; an engine that works keeps some more than it reserved.

        One page, or as many as its warm reserve has seen bursts take.
        """
        warm_rows = max(1, self.pool.warm_pages) * self._rows_per_page
        self.pool.trim(0 if idle else self._reserved_rows + warm_rows)

    def step_boundary(self, cache: PrefixCache, *, idle: bool) -> None:
        """Return what nobody here needs: empty pages always, prefix cache when the ledger asks for it."""
        self.trim(idle=idle)
        if idle:
            self._reserved_rows = 0
            self._refused = False
            self._set_shortfall(admission_rows=0, decode_rows=0)
        self._offer_spare(cache)
        asked_bytes = self._client.asked_bytes()
        if asked_bytes > 0:
            self._give_back(asked_bytes, cache)
        if self._client.is_cut_off() and not self._has_warned:
            self._has_warned = True
            _log.error(
                "the ledger's file was deleted or replaced while this engine uses it: engines started since "
                "then share another budget, and together they may exceed the device; restart this engine"
            )
        self.pool.publish()

    def _grow_towards(self, rows: int, cache: PrefixCache) -> int:
        """Back free rows up to `rows`; the rows still missing. Grows nothing where that could not help."""
        if not self._grow(rows):
            within_reach_rows = self.pool.rows_obtainable
            if within_reach_rows + cache.evictable_rows() >= rows:
                self._grow(within_reach_rows)
        return max(0, rows - self.pool.rows_free_backed)

    def _grow(self, rows: int) -> bool:
        if self.pool.rows_free_backed >= rows:
            return True
        try:
            return self.pool.grow(rows)
        except _core.OutOfMemory:
            # The driver or the OS refused what the ledger granted: the same answer as the ledger's no.
            return False

    def _offer_spare(self, cache: PrefixCache) -> None:
        """Show the others what this engine could give back: whole pages' worth of cache and of free rows."""
        free_rows = max(0, self.pool.rows_free_backed - self._reserved_rows)
        pages = (cache.evictable_rows() + free_rows) // self._rows_per_page
        self._client.set_spare(min(pages * self._page_set_bytes, self._client.used_bytes))

    def _give_back(self, asked_bytes: int, cache: PrefixCache) -> None:
        """Give back free pages, then prefix cache, oldest first; the ledger asks for nothing below the floor.

        Evicting a page's worth of rows seldom empties exactly one page, so the loop asks again until enough
        came back or the cache holds nothing more; each turn evicts something, which bounds it.
        """
        lacking_bytes = asked_bytes - self.pool.trim(self._reserved_rows)
        while lacking_bytes > 0 and (evictable_rows := cache.evictable_rows()) > 0:
            pages = -(-lacking_bytes // self._page_set_bytes)
            cache.evict(min(evictable_rows, pages * self._rows_per_page))
            lacking_bytes -= self.pool.trim(self._reserved_rows)
            if cache.evictable_rows() >= evictable_rows:
                break
        if lacking_bytes > 0:
            self._client.set_spare(0)  # all that could go is gone: the ledger asks somebody else for the rest
        else:
            self._offer_spare(cache)

    def _set_shortfall(self, *, admission_rows: int | None = None, decode_rows: int | None = None) -> None:
        before = self._shortfall.rows
        if admission_rows is not None:
            self._shortfall.admission_rows = admission_rows
        if decode_rows is not None:
            self._shortfall.decode_rows = decode_rows
        if self._shortfall.rows or before:
            pages = -(-self._shortfall.rows // self._rows_per_page)
            self._client.set_want(pages * self._page_set_bytes, WANT_S)
