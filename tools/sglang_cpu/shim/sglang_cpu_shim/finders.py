"""Import hooks: which module names get a stand-in, and what runs before torchvision does."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

STAND_INS = {"sgl_kernel": "sglang_cpu_shim.kernels", "triton": "sglang_cpu_shim.triton_names"}

# Missing on purpose: SGLang registers kernel-load hooks with it where it exists, and skips that where it does not.
ABSENT = frozenset({"triton.knobs"})


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for ``sgl_kernel``, ``triton`` and everything beneath them, when nothing real did."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        root, _, rest = fullname.partition(".")
        if root not in STAND_INS or fullname in ABSENT:
            return None
        if rest and not getattr(sys.modules.get(root), "__stand_in__", False):
            return None  # the real package is loaded; a submodule it lacks must stay missing
        return importlib.machinery.ModuleSpec(fullname, self, origin="sglang_cpu_shim", is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        maker = importlib.import_module(STAND_INS[spec.name.partition(".")[0]])
        module: types.ModuleType = maker.make_module(spec.name)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run: the module was made complete."""


class TorchvisionFinder(importlib.abc.MetaPathFinder):
    """Finds torchvision as usual, but lets its operators be declared before its code runs."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torchvision":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _DeclaringLoader(spec.loader)
        return spec


class _DeclaringLoader(importlib.abc.Loader):
    """The real loader with one step in front; everything else is passed through."""

    def __init__(self, real: importlib.abc.Loader) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        from sglang_cpu_shim.torchvision_ops import declare_missing_operators

        declare_missing_operators(list(module.__path__))
        self._real.exec_module(module)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)
