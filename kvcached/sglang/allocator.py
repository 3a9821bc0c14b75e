"""SGLang's token and page allocators over elastic memory."""

from typing import Any

import torch
from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.utils import get_num_new_pages

from kvcached import errors
from kvcached.sglang.budget import ElasticPrefillBudget
from kvcached.sglang.cache import SglangPrefixCache
from kvcached.sglang.capacity import Capacity


class ElasticAllocator(BaseTokenToKVPoolAllocator):
    """What both allocators share: the questions about memory, answered by `Capacity`.

    `available_size()` counts logical rows, reserved minus used, so that SGLang's own leak checks stay exact.
    Whether rows can be had is asked elsewhere: admission in `ElasticPrefillBudget`, decode in
    `check_decode_capacity`, everything else in `evict_to_free_tokens`.
    """

    capacity: Capacity
    _aborts_last_request = True

    def _attach(self, capacity: Capacity, device: str) -> None:
        """Before SGLang's own `__init__`, which ends with `clear()`."""
        self.capacity = capacity
        self._pool = capacity.pool
        self._on_host = torch.device(device).type == "cpu"

    def clear(self) -> None:
        """Free every row and return every page but the padding page."""
        self.free_pages = None
        self.release_pages = None
        self.free_group = None
        self._pool.clear()

    def available_size(self) -> int:
        """Rows that are not in use, backed or not."""
        return self._pool.rows_total - self._pool.rows_used

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
        paged_input_rows = -(-input_tokens // self.page_size) * self.page_size
        room_rows = attainable_rows - paged_input_rows - 2 * self.page_size - 1
        return None if room_rows < 0 else min(max_new_tokens, room_rows)

    def resize(self, config: Any) -> None:
        """Not supported: addresses are fixed for the life of the engine."""
        raise errors.Misuse(
            f"the KV pool of {self.size} rows cannot be resized to {config.max_total_num_tokens}: kvcached "
            "grows and shrinks beneath fixed addresses; unset SGLANG_ENABLE_POST_CAPTURE_KV_SIZING"
        )

    def _take(self, ids: int) -> torch.Tensor | None:
        """So many ids on the pool's device; None if too few are backed."""
        taken = self._pool.alloc(ids)
        if taken is None:
            return None
        index = torch.from_numpy(taken)
        return index if self._on_host else index.to(self.device)

    def _give_back(self, ids: torch.Tensor) -> None:
        """Their memory stays until the step boundary."""
        if not self._on_host or ids.dtype is not torch.int64:  # a call that changes nothing costs too
            ids = ids.to(device="cpu", dtype=torch.int64)
        self._pool.free(ids.contiguous().numpy())


class ElasticTokenAllocator(ElasticAllocator, TokenToKVPoolAllocator):
    """Hands out KV rows one by one (page size 1); row 0 is SGLang's padding row."""

    def __init__(
        self, size: int, *, dtype: torch.dtype, device: str, kvcache: Any, capacity: Capacity
    ) -> None:
        self._attach(capacity, device)
        super().__init__(size, dtype, device, kvcache, need_sort=False)

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Rows as an int64 tensor of shape (need_size,) on the pool's device; None if too few are backed."""
        return self._take(need_size)

    def free(self, free_index: torch.Tensor) -> None:
        """Give rows back."""
        if free_index.numel() == 0:
            return
        if self.free_group is not None:
            self.free_group.append(self._copy_for_free_group(free_index))
            return
        self._give_back(free_index)


class ElasticPagedAllocator(ElasticAllocator, PagedTokenToKVPoolAllocator):
    """Hands out SGLang's pages of `page_size` rows; page 0 is SGLang's padding.

    SGLang's own code turns pages into rows: it finds in `free_pages` exactly those that the call takes.
    """

    def __init__(
        self, size: int, page_size: int, *, dtype: torch.dtype, device: str, kvcache: Any, capacity: Capacity
    ) -> None:
        self._attach(capacity, device)
        super().__init__(size, page_size, dtype, device, kvcache, need_sort=False)

    def clear(self) -> None:
        """Free every row and return every page but the padding page."""
        super().clear()
        self.free_page_ids_group: list[torch.Tensor] = []
        self.staged_pages: list[torch.Tensor] = []
        self.num_staged_pages = 0

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Whole pages as rows, int64 of shape (need_size,); None if too few are backed."""
        return super().alloc(need_size) if self._lay_out(need_size // self.page_size) else None

    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        num_new_pages: int | None = None,
    ) -> torch.Tensor | None:
        """Rows for prompts that go on behind `last_loc`, int64 of shape (extend_num_tokens,), or None."""
        pages = num_new_pages
        if pages is None:
            pages = get_num_new_pages(
                seq_lens=seq_lens_cpu, page_size=self.page_size, prefix_lens=prefix_lens_cpu
            )
        if not self._lay_out(pages):
            return None
        rows: torch.Tensor = super().alloc_extend(
            prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens, pages
        )
        return rows

    def alloc_decode(
        self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor | None:
        """One more row per request, int64 of shape (requests,), or None."""
        if not self._lay_out(get_num_new_pages(seq_lens=seq_lens_cpu, page_size=self.page_size, decode=True)):
            return None
        rows: torch.Tensor = super().alloc_decode(seq_lens, seq_lens_cpu, last_loc)
        return rows

    def get_all_free_pages(self) -> None:
        """No list of free pages exists."""

    def _lay_out(self, pages: int) -> bool:
        self.free_pages = self._take(pages)
        return self.free_pages is not None

    def _release_page_ids(self, *page_ids: torch.Tensor) -> None:
        self._give_back(torch.cat(page_ids))

    def _debug_check_no_duplicate_pages(self) -> None:
        self._pool.check_invariants()
