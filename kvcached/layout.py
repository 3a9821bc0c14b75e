"""Where the rows of a KV cache lie: one pure description, from which geometry and tensors follow.

A row is what one token leaves in the cache; a stripe is an array of equal rows (:class:`Geometry` knows no
more). Two layouts of the same rows:

- ``per_layer``: each layer's K and each layer's V is a stripe. Tensors are contiguous, as kernels expect. A
  page of 2 MiB holds about 1,024 tokens of an 8B model in one tensor, and as much in every other.
- ``token_major``: one stripe, whose row holds K and V of all layers of one token. Tensors are strided views
  of it. A page of 2 MiB is 16 tokens of an 8B model: memory follows the load in finer steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from kvcached import tensors
from kvcached._core import Geometry
from kvcached.errors import Misuse

if TYPE_CHECKING:
    from kvcached._core import Capabilities
    from kvcached.tensors import Dtype

Layout = Literal["per_layer", "token_major"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one tensor lies: ``offset_bytes`` into its stripe's row 0, and from one row to the next."""

    stripe: int
    offset_bytes: int
    stride_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """The rows of one model's KV cache.

    Args:
        layers: number of layers; each has one K and one V tensor, or one latent tensor.
        rows: most rows that can be allocated at once (rounded up to whole pages).
        row_shape: shape of one row of K, usually ``(heads, head_dim)``, or of the latent row.
        v_row_shape: shape of one row of V; as K when None.
        latent: a layer keeps one row for both, as MLA does; there is no V.
        dtype: element type, as a torch dtype or its name.
        layout: ``per_layer`` or ``token_major``.
        page_bytes: widest stripe of a page; the backend's default when None.
        row_multiple: rows per page are a multiple of this (an engine's block size).
        reserved_rows: padding rows at the start: always backed, never handed out.

    Raises:
        Misuse: impossible values.
    """

    layers: int
    rows: int
    row_shape: tuple[int, ...]
    v_row_shape: tuple[int, ...] | None = None
    latent: bool = False
    dtype: Dtype | str = "float16"
    layout: Layout = "per_layer"
    page_bytes: int | None = None
    row_multiple: int = 1
    reserved_rows: int = 1

    def __post_init__(self) -> None:
        if self.layers < 1 or self.rows < 1:
            raise Misuse(f"a KV cache of {self.layers} layers and {self.rows} rows: both must be 1 or more")
        if self.layout not in get_args(Layout):
            raise Misuse(f"layout is {self.layout!r}, must be one of {', '.join(get_args(Layout))}")
        if self.latent and self.v_row_shape is not None:
            raise Misuse("a latent cache has no V: leave v_row_shape out")

    @property
    def element(self) -> Dtype:
        """The element type; Misuse for a name that torch does not have."""
        return tensors.resolve_dtype(self.dtype)

    @property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """Row shapes of a layer's tensors: K and V, or the latent one."""
        k_shape = tuple(self.row_shape)
        if self.latent:
            return (k_shape,)
        return (k_shape, k_shape if self.v_row_shape is None else tuple(self.v_row_shape))

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """Bytes of one row of each part."""
        return tuple(math.prod(shape) * self.element.itemsize for shape in self.parts)

    def place(self, part: int, layer: int) -> Place:
        """Where the tensor of one part (0 is K or the latent, 1 is V) of one layer lies."""
        if self.layout == "per_layer":
            return Place(part * self.layers + layer, 0, self.part_bytes[part])
        token_bytes = sum(self.part_bytes)
        offset_bytes = layer * token_bytes + sum(self.part_bytes[:part])
        return Place(0, offset_bytes, self.layers * token_bytes)

    def geometry(self, backend: Capabilities) -> Geometry:
        """Stripes over the pages of one backend: K of all layers and then V, or a single one."""
        if self.layout == "per_layer":
            row_bytes = [nbytes for nbytes in self.part_bytes for _ in range(self.layers)]
        else:
            row_bytes = [self.layers * sum(self.part_bytes)]
        return Geometry(
            rows=self.rows + self.reserved_rows,
            row_bytes=row_bytes,
            granularity_bytes=backend.granularity_bytes,
            page_bytes=backend.default_page_bytes if self.page_bytes is None else self.page_bytes,
            row_multiple=self.row_multiple,
            reserved_rows=self.reserved_rows,
        )
