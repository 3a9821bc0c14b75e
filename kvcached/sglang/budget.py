"""SGLang's admission budget over elastic memory."""

from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.prefill_budget import PrefillBudget

from kvcached.sglang.cache import SglangPrefixCache

if TYPE_CHECKING:
    from kvcached.sglang.allocator import ElasticAllocator


class ElasticPrefillBudget(PrefillBudget):
    """One admission pass.

    Stock counts one fixed pool. Here the horizon (`remaining_total`) counts what could be had this instant,
    and a candidate is granted only once its rows are backed (`check_prefill`, `can_allocate_prefill`,
    `fit_chunk`), so that the allocation which follows in the same step cannot fail.
    """

    def __init__(
        self, allocator: "ElasticAllocator", tree_cache: Any, *, num_mixed_decode_tokens: int = 0
    ) -> None:
        super().__init__(allocator, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens)
        self._capacity = allocator.capacity
        self._cache = SglangPrefixCache(tree_cache)
        self._chunk_parked = False

    def _available_and_evictable(self) -> int:
        return self._capacity.obtainable_rows(self._cache)

    def has_capacity(self) -> bool:
        """Whether another candidate is worth a look."""
        return not self._chunk_parked and super().has_capacity()

    def check_prefill(
        self,
        *,
        extend_input_len: int,
        total_tokens: int,
        max_new_tokens: int,
        input_tokens: int,
        swa_host_hit_length: int,
        chunk_limit: int | None,
    ) -> tuple[bool, int | None]:
        """Admit if the whole request fits the horizon and its whole prompt can be backed now.

        A prompt of several chunks is backed at its first one: two engines that each hold part of a prompt
        could otherwise wait for each other for good.
        """
        missing_rows = total_tokens - int(self.remaining_total) + 1
        if missing_rows > 0 or self._chunk_parked:
            self._capacity.refuse(max(0, missing_rows))
            return False, None
        in_chunks = chunk_limit is not None and extend_input_len > chunk_limit
        return (True, chunk_limit) if self._secure(extend_input_len, backed=in_chunks) else (False, None)

    def can_allocate_prefill(
        self, *, paged_input: int, extend_input_len: int, max_new_tokens: int, chunk_limit: int | None
    ) -> bool:
        """As `check_prefill`, for requests that ignore the end token while the prefix cache is off."""
        missing_rows = paged_input - int(min(self.remaining_current, self.remaining_total))
        if missing_rows > 0 or self._chunk_parked:
            self._capacity.refuse(max(0, missing_rows))
            return False
        in_chunks = chunk_limit is not None and extend_input_len > chunk_limit
        return self._secure(paged_input, backed=in_chunks)

    def available_chunk_tokens(self, chunk_limit: int) -> int:
        """The next chunk of a request that is already in: `fit_chunk` decides how much of it fits."""
        return chunk_limit

    def fit_chunk(self, *, extend_input_len: int, max_new_tokens: int, chunk_limit: int) -> int | None:
        """As much of the next chunk as can be backed now; None parks the request for this pass.

        A parked pass admits nobody else: rows that come free belong to the request that already holds some.
        """
        step_rows = min(extend_input_len, chunk_limit)
        if self._secure(step_rows):
            return chunk_limit
        held_rows = self._capacity.pool.rows_free_backed + self._cache.evictable_rows()
        fitting_rows = (held_rows - self.current_offset) // self.page_size * self.page_size - self.page_size
        if fitting_rows > 0:
            return fitting_rows
        self._chunk_parked = True
        return None

    def _secure(self, step_rows: int, *, backed: bool = False) -> bool:
        secure = self._capacity.secure_backed if backed else self._capacity.secure
        step_rows = self.ceil_paged_tokens(step_rows)
        return secure(self.current_offset + step_rows + self.page_size, self._cache)
