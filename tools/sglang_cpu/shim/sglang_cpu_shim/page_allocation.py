"""Page sizes above 1 on the CPU: which rows of which pages a request gets, computed with torch operations.

SGLang computes it in triton kernels, and has the same for prompts in torch for other devices.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Launchable:
    """A function that is called as a triton kernel is: `kernel[grid](...)`."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._function


def before(module: Any) -> None:
    """Nothing to prepare."""


def after(module: Any) -> None:
    """Put torch in the place of the two kernels."""
    import torch

    def extend(
        prefix_lens: Any, seq_lens: Any, last_loc: Any, free_pages: Any, rows: Any, _: int, page_size: int
    ) -> None:
        module.alloc_extend_naive(
            prefix_lens, seq_lens, last_loc, free_pages, rows, page_size, free_pages.device
        )

    def decode(seq_lens: Any, last_loc: Any, free_pages: Any, rows: Any, _: int, page_size: int) -> None:
        begins_page = seq_lens % page_size == 1
        pages = free_pages[: int(begins_page.sum())]
        rows.copy_(last_loc + 1)
        rows[begins_page] = pages.to(torch.int64) * page_size

    module.alloc_extend_kernel = Launchable(extend)
    module.alloc_decode_kernel = Launchable(decode)
