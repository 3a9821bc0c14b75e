"""Elastic memory for LLM engines: reserve addresses once, let physical pages follow the load.

Importing this package is cheap: it loads neither torch nor an engine, and needs no GPU. Names are resolved on
first use.

>>> import kvcached
>>> kvcached.cuda_unavailable_reason()  # None when the CUDA backend can be used  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcached._core import build_info
    from kvcached.api import (
        VirtualTensor,
        alloc_kv,
        alloc_kvcache,
        alloc_virtual_tensor,
        free_kv,
        free_kvcache,
        free_virtual_tensor,
        map,  # noqa: A004 - the paper's name
        unmap,
    )
    from kvcached.backends import cuda_unavailable_reason
    from kvcached.kv_pool import KVCachePool
    from kvcached.layout import KVCacheSpec

    __version__: str

__all__ = [
    "KVCachePool",
    "KVCacheSpec",
    "VirtualTensor",
    "__version__",
    "alloc_kv",
    "alloc_kvcache",
    "alloc_virtual_tensor",
    "build_info",
    "cuda_unavailable_reason",
    "free_kv",
    "free_kvcache",
    "free_virtual_tensor",
    "map",
    "unmap",
]

_HOMES = {
    "build_info": "_core",
    "cuda_unavailable_reason": "backends",
    "KVCachePool": "kv_pool",
    "KVCacheSpec": "layout",
}


def __getattr__(name: str) -> object:
    """Load the module behind a public name when it is first asked for (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'kvcached' has no attribute {name!r}")
    if name == "__version__":
        value: object = importlib.import_module("kvcached._core").build_info()["version"]
    else:
        value = getattr(importlib.import_module(f"kvcached.{_HOMES.get(name, 'api')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
