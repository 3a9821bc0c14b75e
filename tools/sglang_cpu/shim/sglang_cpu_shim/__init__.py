"""Lets SGLang import and serve on a machine without a GPU, by standing in for what needs CUDA.

Three things stop SGLang's import on a CPU-only PyTorch, although a CPU engine never calls them, and one stops
models with multi-head latent attention:

* ``sgl_kernel``, compiled CUDA kernels whose wheels do not load without CUDA (:mod:`.kernels`);
* ``triton``, a compiler for GPU kernels of 700 MB (:mod:`.triton_names`);
* ``torchvision`` from the default package index, built for CUDA, which declares none of its operators
  when its library does not load (:mod:`.torchvision_ops`);
* SGLang's table of ways to compute that attention, which has none for the CPU (:mod:`.latent_attention`).

A stand-in only offers names. Calling one that would compute raises ``NotImplementedError``. The finder
goes to the *end* of ``sys.meta_path``: a real package always wins. On a machine with an NVIDIA device
nothing is activated unless ``SGLANG_USE_CPU_ENGINE=1`` asks for the CPU engine.

This module runs at every interpreter start (``sglang_cpu_shim.pth``), so it imports next to nothing.
"""

import os
import sys

CPU_ENGINE_VARIABLE = "SGLANG_USE_CPU_ENGINE"
NVIDIA_DEVICE = "/dev/nvidiactl"


def wanted() -> bool:
    """Whether the stand-ins may take part: no NVIDIA device here, or the CPU engine asked for."""
    return os.environ.get(CPU_ENGINE_VARIABLE) == "1" or not os.path.exists(NVIDIA_DEVICE)


def activate() -> bool:
    """Install the finders once per process. Returns whether they are installed now."""
    if not wanted():
        return False
    from .finders import AmendingFinder, StandInFinder

    if not any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AmendingFinder())
        sys.meta_path.append(StandInFinder())
    return True
