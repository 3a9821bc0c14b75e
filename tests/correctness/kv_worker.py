"""A process that holds a KV cache and does as it is told: one JSON object a line in, one out.

Run as `python -m tests.correctness.kv_worker`. `PoolProcess` in pool_process.py speaks to it.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

import kvcached
from kvcached.kv_pool import KVCachePool

ROW_SHAPE = (2, 32)
LAYERS = 3
_MIX = 2_654_435_761
_FILL_STEP_ROWS = 1 << 14


class Worker:
    """One KV cache of int32 elements, so that a row's content can be computed and compared exactly."""

    def __init__(self) -> None:
        self._cache: KVCachePool | None = None
        self._filling: list[torch.Tensor] = []

    def open(self, ledger: str, budget_bytes: int, name: str, rows: int) -> dict[str, int]:
        """Make the cache. Answers its geometry and the process-independent figures of it."""
        self._cache = kvcached.alloc_kvcache(
            layers=LAYERS,
            rows=rows,
            row_shape=ROW_SHAPE,
            dtype="int32",
            name=name,
            ledger_path=ledger,
            budget_bytes=budget_bytes,
            warm_rows=0,
        )
        geometry = self._cache.geometry
        return {
            "page_set_bytes": geometry.page_set_bytes,
            "rows_per_page": geometry.rows_per_page,
            "reserved_rows": geometry.reserved_rows,
        }

    def alloc(self, rows: int) -> list[int] | None:
        """Row numbers; None where the budget refuses."""
        taken = self._open.try_alloc(rows)
        return None if taken is None else [int(row) for row in taken]

    def fill(self) -> int:
        """Take rows until the budget refuses; the bytes mapped then."""
        step_rows = _FILL_STEP_ROWS
        while step_rows:
            rows = self._open.try_alloc(step_rows)
            if rows is None:
                step_rows //= 2
            else:
                self._filling.append(rows)
        return self._open.mapped_bytes

    def drain(self) -> int:
        """Give back what `fill` took; the bytes mapped then."""
        while self._filling:
            self._open.free(self._filling.pop())
        return self._open.mapped_bytes

    def write(self, rows: list[int], seed: int) -> None:
        """Fill K and V of these rows, in every layer, with what `seed` says."""
        index = torch.tensor(rows)
        for stripe, tensor in enumerate((*self._open.k, *self._open.v)):
            tensor[index] = _content(index, stripe, seed)

    def wrong_rows(self, rows: list[int], seed: int) -> int:
        """Rows (over all layers, K and V) that do not hold what was written with `seed`."""
        index = torch.tensor(rows)
        return sum(
            int((tensor[index] != _content(index, stripe, seed)).flatten(1).any(dim=1).sum())
            for stripe, tensor in enumerate((*self._open.k, *self._open.v))
        )

    def nonzero_rows(self, rows: list[int]) -> int:
        """Rows (over all layers, K and V) that hold anything but zeros."""
        index = torch.tensor(rows)
        tensors = (*self._open.k, *self._open.v)
        return sum(int(tensor[index].flatten(1).any(dim=1).sum()) for tensor in tensors)

    def free(self, rows: list[int]) -> int:
        """Give rows back; the bytes still mapped."""
        self._open.free(rows)
        self._open.check_invariants()
        return self._open.mapped_bytes

    def close(self) -> None:
        """Give everything back."""
        if self._cache is not None:
            kvcached.free_kvcache(self._cache)

    @property
    def _open(self) -> KVCachePool:
        if self._cache is None:
            raise RuntimeError("send `open` first")
        return self._cache


def _content(rows: torch.Tensor, stripe: int, seed: int) -> torch.Tensor:
    """Elements of these rows, int32 (rows, *ROW_SHAPE), that differ by row, stripe, place and seed."""
    places = torch.arange(ROW_SHAPE[0] * ROW_SHAPE[1]).view(1, *ROW_SHAPE)
    key = ((rows.view(-1, 1, 1) * 1024 + stripe) * 4096 + places) * 64 + seed
    return (key * _MIX % 2_147_483_647 + 1).to(torch.int32)  # never 0, so that zeros are always foreign


def main() -> None:
    """Serve commands from stdin until it ends."""
    worker = Worker()
    commands: dict[str, Callable[..., Any]] = {
        name: getattr(worker, name)
        for name in ("open", "alloc", "fill", "drain", "write", "wrong_rows", "nonzero_rows", "free", "close")
    }
    for line in sys.stdin:
        request = json.loads(line)
        answer = commands[request["command"]](**request["arguments"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
