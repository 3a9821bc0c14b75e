"""The sampler sees memory of a real client of a real ledger, through the kernel."""

import time
from pathlib import Path

from demo.sampler import MemorySampler
from kvcached._core import Backend, Geometry, KvPool, Ledger

PAGE_BYTES = 64 * 2**10


def wait_for_samples(sampler: MemorySampler, name: str, at_least: int) -> None:
    deadline = time.monotonic() + 30
    while sampler.latest().get(name, -1) < at_least and time.monotonic() < deadline:
        time.sleep(0.05)


def test_mapped_bytes_follow_what_a_pool_backs(tmp_path: Path) -> None:
    path = tmp_path / "private" / "host0.ledger"
    path.parent.mkdir(mode=0o700)
    ledger = Ledger(str(path), 64 * 2**20)
    client = ledger.register(name="model")
    backend = Backend.host()
    geometry = Geometry(
        rows=4096,
        row_bytes=[1024] * 4,
        granularity_bytes=backend.capabilities.granularity_bytes,
        page_bytes=PAGE_BYTES,
    )
    pool = KvPool(backend, geometry, client)
    sampler = MemorySampler(path, ["model", "absent"])
    try:
        pool.publish()
        sampler.start()
        assert pool.grow(1000)
        grown_bytes = pool.mapped_bytes
        assert grown_bytes >= 1000 * 4 * 1024
        wait_for_samples(sampler, "model", grown_bytes)
        series = sampler.stop()
    finally:
        pool.close()
        client.close()
    assert series.peaks() == {"model": grown_bytes, "absent": 0}
    assert len(series.times_s) == len(series.mapped_bytes["model"])
