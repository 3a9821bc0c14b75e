"""What the figures of bench/hostmap rest on: that memory which is counted is there."""

from types import SimpleNamespace

import pytest

from bench.hostmap.run import KINDS, Kind, verify_resident
from kvcached._core import Geometry, KvPool


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffix or "plain")
def test_memory_that_is_counted_and_not_there_is_an_error(kind: Kind) -> None:
    geometry = Geometry(
        rows=1 << 14, row_bytes=[1024], granularity_bytes=4096, page_bytes=kind.page_bytes, reserved_rows=0
    )
    pool = KvPool(kind.backend, geometry)
    verify_resident(pool, 1 << 12)
    assert pool.mapped_bytes == 0
    unpopulated = SimpleNamespace(
        grow=lambda rows: True,
        trim=lambda: 0,
        base_address=pool.base_address,
        geometry=geometry,
        mapped_bytes=kind.page_bytes,
    )
    with pytest.raises(RuntimeError, match="0 are resident"):
        verify_resident(unpopulated, 1 << 12)  # type: ignore[arg-type]
    pool.close()
