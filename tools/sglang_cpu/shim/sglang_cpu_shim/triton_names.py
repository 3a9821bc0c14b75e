"""``triton`` without a compiler: kernels can be defined (decorated) but not launched.

What code does with triton while it is only being *imported*: decorate functions, subclass or annotate with
its types, wrap constants in ``constexpr``, list ``Config`` objects. Those work. Two plain helpers that host
code uses for sizes, ``cdiv`` and ``next_power_of_2``, compute. Everything else raises when called.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from .finders import ABSENT

# The version SGLang 0.5.21's PyTorch (2.13.0) is built against: code compares it at import.
VERSION = "3.7.0"
DECORATORS = frozenset({"jit", "autotune", "heuristics", "constexpr_function", "builtin", "_aggregate"})


def _refuse(name: str) -> NotImplementedError:
    return NotImplementedError(
        f"{name} needs triton and a GPU; this is the import-only stand-in (sglang_cpu_shim)"
    )


class UnlaunchableKernel:
    """A decorated kernel. ``kernel[grid](...)`` and ``kernel(...)`` raise NotImplementedError."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        functools.update_wrapper(self, fn, updated=())

    def __getitem__(self, grid: object) -> Callable[..., object]:
        return self

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Raise NotImplementedError: nothing was compiled."""
        raise _refuse(f"triton kernel {getattr(self, '__name__', '?')}")


def _decorator(*args: Any, **kwargs: Any) -> Any:
    """Works bare (``@jit``) and with arguments (``@autotune(configs=..., key=...)``)."""
    if len(args) == 1 and not kwargs and (callable(args[0]) or isinstance(args[0], UnlaunchableKernel)):
        return args[0] if isinstance(args[0], UnlaunchableKernel | type) else UnlaunchableKernel(args[0])
    return _decorator


class Config:
    """Launch options of an autotuned kernel: kept, never used."""

    def __init__(
        self, kwargs: dict[str, Any] | None = None, num_warps: int = 4, num_stages: int = 2, **more: Any
    ) -> None:
        self.kwargs = kwargs or {}
        self.num_warps = num_warps
        self.num_stages = num_stages
        self.more = more


class constexpr:  # noqa: N801 - triton's own spelling
    """A compile-time constant of a kernel."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


def cdiv(x: int, y: int) -> int:
    """Ceiling division, as host code uses it to size grids."""
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    """Smallest power of two that is at least ``n``; 0 for ``n`` of 0 or less."""
    return 1 << (n - 1).bit_length() if n > 0 else 0


class _TypeName:
    """Base of made-up classes such as ``tl.tensor`` types: can be subclassed, annotated with, not used."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise _refuse(type(self).__name__)


class _TritonModule(types.ModuleType):
    __stand_in__ = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or f"{self.__name__}.{name}" in ABSENT:
            raise AttributeError(name)
        value: Any = _decorator if name in DECORATORS else self._made_up(name)
        setattr(self, name, value)
        return value

    def _made_up(self, name: str) -> Any:
        if name[:1].isupper():
            return type(name, (_TypeName,), {"__module__": self.__name__})
        return _TritonModule(f"{self.__name__}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> object:
        raise _refuse(self.__name__)


def make_module(fullname: str) -> types.ModuleType:
    """The stand-in for ``triton`` or a submodule of it."""
    module = _TritonModule(fullname, __doc__)
    if fullname == "triton":
        module.__dict__.update(__version__=VERSION, Config=Config, cdiv=cdiv, next_power_of_2=next_power_of_2)
    if fullname in ("triton.language", "triton.language.core"):
        module.__dict__.update(constexpr=constexpr)
    return module
