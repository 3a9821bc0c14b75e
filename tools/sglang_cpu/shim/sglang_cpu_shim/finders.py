"""Import hooks: which module names get a stand-in, and what runs beside the code of real modules.

Finders and loaders are plain classes: their base classes in `importlib.abc` would import `typing` and more
into every interpreter of the environment.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:  # the constant is what type checkers look at; importing it would import typing
    from collections.abc import Sequence
    from typing import Any

STAND_INS = {"sgl_kernel": "sglang_cpu_shim.kernels", "triton": "sglang_cpu_shim.triton_names"}

# Modules with `before(module)` and `after(module)`, to run around the code of real ones.
AMENDED = {
    "torchvision": "sglang_cpu_shim.torchvision_ops",
    "sglang.srt.mem_cache.allocator.paged": "sglang_cpu_shim.page_allocation",
    "sglang.srt.models.deepseek_common.attention_backend_handler": "sglang_cpu_shim.latent_attention",
}

# Missing on purpose: SGLang registers kernel-load hooks with it where it exists, and else skips that.
ABSENT = frozenset({"triton.knobs"})


class StandInFinder:
    """Answers for ``sgl_kernel``, ``triton`` and everything beneath them, when nothing real did."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for our names; None for others and beneath a real package."""
        root, _, rest = fullname.partition(".")
        if root not in STAND_INS or fullname in ABSENT:
            return None
        if rest and not getattr(sys.modules.get(root), "__stand_in__", False):
            return None  # the real package is loaded; a submodule it lacks must stay missing
        return importlib.machinery.ModuleSpec(
            fullname, _loader(self), origin="sglang_cpu_shim", is_package=True
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """The stand-in module."""
        maker = importlib.import_module(STAND_INS[spec.name.partition(".")[0]])
        module: types.ModuleType = maker.make_module(spec.name)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run: the module was made complete."""


class AmendingFinder:
    """Finds real modules as usual, but lets a step of ours run before or after their code."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The real module's spec with our loader in front; None for names that need no step."""
        if fullname not in AMENDED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _loader(_AmendingLoader(spec.loader, AMENDED[fullname]))
        return spec


class _AmendingLoader:
    """The real loader with our step; everything else is passed through."""

    def __init__(self, real: Any, amendment: str) -> None:
        self._real = real
        self._amendment = amendment

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        module: types.ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        amendment = importlib.import_module(self._amendment)
        amendment.before(module)
        self._real.exec_module(module)
        amendment.after(module)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


def _loader(loader: Any) -> Any:
    """A loader by behaviour; the type stubs want subclasses of `importlib.abc.Loader`."""
    return loader
