"""SGLang's token allocator over elastic memory."""

from typing import Any

import torch
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from kvcached import errors
from kvcached.sglang.budget import ElasticPrefillBudget
from kvcached.sglang.cache import SglangPrefixCache
from kvcached.sglang.capacity import Capacity


class ElasticTokenAllocator(TokenToKVPoolAllocator):
    """Hands out KV rows (page size 1); row 0 is SGLang's padding row.

    `available_size()` counts logical rows, reserved minus used, so that SGLang's own leak checks stay exact.
    Whether rows can be had is asked elsewhere: admission in `ElasticPrefillBudget`, decode in
    `check_decode_capacity`, everything else in `evict_to_free_tokens`.
    """

    def __init__(
        self, size: int, *, dtype: torch.dtype, device: str, kvcache: Any, capacity: Capacity
    ) -> None:
        self.capacity = capacity
        self._pool = capacity.pool
        self._on_host = torch.device(device).type == "cpu"
        self._aborts_last_request = True
        super().__init__(size, dtype, device, kvcache, need_sort=False)

    def clear(self) -> None:
        """Free every row and return every page but the padding page."""
        self.free_pages = None
        self.release_pages = None
        self.free_group = None
        self._pool.clear()

    def available_size(self) -> int:
        """Rows that are not in use, backed or not."""
        return self._pool.rows_total - self._pool.rows_used

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Rows as an int64 tensor of shape (need_size,) on the pool's device; None if too few are backed."""
        rows = self._pool.alloc(need_size)
        if rows is None:
            return None
        index = torch.from_numpy(rows)
        return index if self._on_host else index.to(self.device)

    def free(self, free_index: torch.Tensor) -> None:
        """Give rows back. Their pages stay backed until the step boundary."""
        if free_index.numel() == 0:
            return
        if self.free_group is not None:
            self.free_group.append(self._copy_for_free_group(free_index))
            return
        if not self._on_host or free_index.dtype is not torch.int64:  # a call that changes nothing costs too
            free_index = free_index.to(device="cpu", dtype=torch.int64)
        self._pool.free(free_index.contiguous().numpy())

    def create_prefill_budget(
        self, tree_cache: Any, *, num_mixed_decode_tokens: int = 0
    ) -> ElasticPrefillBudget:
        """The budget of one admission pass."""
        return ElasticPrefillBudget(self, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens)

    def evict_to_free_tokens(self, tree_cache: Any, num_tokens: int) -> bool:
        """Back and free `num_tokens` rows: grow, then evict prefix cache. Whether that worked."""
        return self.capacity.free_up(num_tokens, SglangPrefixCache(tree_cache))

    def check_decode_capacity(
        self, *, num_tokens: int, tree_cache: Any, requests: Any = None, spec_algorithm: Any = None
    ) -> bool:
        """Whether the next decode step's rows are backed and free, after growing and evicting."""
        fits = self.evict_to_free_tokens(tree_cache, num_tokens)
        spared = not self._aborts_last_request and requests is not None and len(requests) <= 1
        return fits or spared

    def spare_last_request(self, spare: bool) -> None:
        """While set, a retract loop may not conclude that its last request has to be aborted."""
        self._aborts_last_request = not spare

    def max_new_tokens_for_memory(
        self,
        input_tokens: int,
        max_new_tokens: int,
        *,
        token_capacity: int,
        sliding_window_size: int | None,
        chunk_size: int | None,
    ) -> int | None:
        """Clip generation to what this engine can ever hold; None where not even the prompt fits."""
        attainable_rows = min(token_capacity, self.capacity.attainable_rows())
        room_rows = attainable_rows - input_tokens - 2 * self.page_size - 1
        return None if room_rows < 0 else min(max_new_tokens, room_rows)

    def resize(self, config: Any) -> None:
        """Not supported: addresses are fixed for the life of the engine."""
        raise errors.Misuse(
            f"the KV pool of {self.size} rows cannot be resized to {config.max_total_num_tokens}: kvcached "
            "grows and shrinks beneath fixed addresses; unset SGLANG_ENABLE_POST_CAPTURE_KV_SIZING"
        )
