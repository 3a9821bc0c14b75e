"""``sgl_kernel`` without kernels: every name exists, calling one raises."""

from __future__ import annotations

import types


class MissingKernel:
    """A kernel that is not here. Attributes are missing kernels too; a call raises NotImplementedError."""

    def __init__(self, qualified_name: str) -> None:
        self.__qualname__ = qualified_name
        self.__name__ = qualified_name.rpartition(".")[2]

    def __getattr__(self, name: str) -> MissingKernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return MissingKernel(f"{self.__qualname__}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Raise NotImplementedError: there is nothing to run."""
        raise NotImplementedError(
            f"{self.__qualname__} needs a GPU build of sgl_kernel; "
            "this is the CPU stand-in (sglang_cpu_shim). "
            "Run the engine with --device cpu --attention-backend torch_native"
        )

    def __repr__(self) -> str:
        return f"<missing kernel {self.__qualname__}>"


class _KernelModule(types.ModuleType):
    __stand_in__ = True

    def __getattr__(self, name: str) -> MissingKernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return MissingKernel(f"{self.__name__}.{name}")


def make_module(fullname: str) -> types.ModuleType:
    """The stand-in for ``sgl_kernel`` or a submodule of it."""
    module = _KernelModule(fullname, __doc__)
    module.__dict__["__version__"] = "0.0.0+cpu.stand.in"
    return module
