"""How multi-head latent attention runs on the CPU without compiled kernels.

SGLang chooses a method for it by the name of the attention backend. ``torch_native`` is not in its table and
gets the choice made for triton, which needs kernels; the plain method runs anywhere.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def before(module: Any) -> None:
    """Nothing to prepare."""


def after(module: Any) -> None:
    """Enter ``torch_native`` in SGLang's table."""
    plain = module.AttnForwardMethod.MLA
    module.AttentionBackendRegistry.register("torch_native", lambda attention, batch: plain)
