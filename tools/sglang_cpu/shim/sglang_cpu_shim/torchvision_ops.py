"""Declares torchvision's operators where its compiled library does not load.

torchvision registers fake implementations for ``torchvision::nms`` and others while it is imported, and that
fails when its CUDA-built library could not declare them. A declaration without an implementation is enough to
import; calling one raises PyTorch's own "not implemented" error.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types

NMS_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_KEPT_ALIVE: list[object] = []  # a torch.library.Library withdraws its declarations when it is collected


def before(module: types.ModuleType) -> None:
    """Before torchvision's own code runs, which needs its operators."""
    declare_missing_operators(list(module.__path__))


def after(module: types.ModuleType) -> None:
    """Nothing to add."""


def declare_missing_operators(package_path: list[str]) -> bool:
    """Declare ``nms`` and ``qnms`` unless the library in ``package_path`` loads. Whether it declared."""
    import torch  # the library links against torch: it must be loaded first

    if _library_loads(package_path):
        return False
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(name + NMS_SCHEMA)
    _KEPT_ALIVE.append(library)
    return True


def _library_loads(package_path: list[str]) -> bool:
    for folder in package_path:
        for library in sorted(Path(folder).glob("_C*.so")):
            try:
                ctypes.CDLL(str(library))  # declares the real operators; torchvision then loads the same one
            except OSError:
                continue
            return True
    return False
