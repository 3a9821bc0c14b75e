"""What a scrape shows of pools and ledgers."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest, parser
from prometheus_client.openmetrics import exposition
from prometheus_client.openmetrics import parser as openmetrics_parser

from kvcached import config, proc
from kvcached._core import Backend, Geometry, KvPool, Ledger
from kvcached.errors import Misuse
from kvcached.kv_pool import KVCachePool
from kvcached.metrics import LedgerCollector, PoolCollector

if TYPE_CHECKING:
    from collections.abc import Iterator

POOL_METRICS = {
    "rows_total": "capacity_rows",
    "rows_used": "used_rows",
    "rows_free_backed": "free_backed_rows",
    "rows_obtainable": "obtainable_rows",
    "rows_attainable": "attainable_rows",
    "mapped_bytes": "mapped_bytes",
    "maps": "mapped_pages_total",
    "unmaps": "unmapped_pages_total",
    "allocs": "allocated_rows_total",
    "frees": "freed_rows_total",
}
CLIENT_METRICS = {
    "used_bytes": "used_bytes",
    "floor_bytes": "floor_bytes",
    "limit_bytes": "limit_bytes",
    "want_bytes": "want_bytes",
    "asked_bytes": "asked_bytes",
    "priority": "priority",
    "rows_used": "used_rows",
    "rows_backed": "backed_rows",
}


def make_pool(**options: object) -> KVCachePool:
    return KVCachePool(Backend.host(), layers=1, rows=1000, row_shape=(8, 64), **options)  # type: ignore[arg-type]


@pytest.fixture
def engine(ledger_path: str) -> Iterator[CollectorRegistry]:
    """A registry as an engine with two pools has it, both paid for under one name."""
    ledger = Ledger(ledger_path, 100 << 20)
    registry = CollectorRegistry(auto_describe=True)
    with (
        make_pool(client=ledger.register(name="engine", limit_bytes=50 << 20)) as full,
        make_pool(client=ledger.register(name="engine"), layout="token_major") as window,
    ):
        registry.register(PoolCollector({"full": full, "window": window}))
        registry.register(LedgerCollector(ledger_path))
        full.free(full.alloc(100)[:30])
        window.alloc(7)
        yield registry


def test_a_scrape_shows_the_figures_of_every_pool_at_that_moment() -> None:
    registry = CollectorRegistry()
    with make_pool() as full, make_pool() as window:
        collector = PoolCollector({"full": full})
        collector.add("window", window)
        registry.register(collector)
        rows = full.alloc(100)
        full.free(rows[:30])
        for name, pool in (("full", full), ("window", window)):
            for field, metric in POOL_METRICS.items():
                shown = registry.get_sample_value(f"kvcached_pool_{metric}", {"pool": name})
                assert shown == getattr(pool.stats(), field), field
        assert registry.get_sample_value("kvcached_pool_used_rows", {"pool": "full"}) == 70
        assert registry.get_sample_value("kvcached_pool_used_rows", {"pool": "window"}) == 0


def test_names_follow_the_conventions_of_prometheus(engine: CollectorRegistry) -> None:
    families = list(engine.collect())
    assert {family.name.split("_")[1] for family in families} == {"pool", "ledger", "client"}
    for family in families:
        assert family.documentation.endswith("."), family.name
        assert not family.name.endswith(("_total", "_count", "_sum", "_bucket", "_info")), family.name
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample.name
            if "bytes" in sample.name:
                assert sample.name.endswith("_bytes")


def test_every_line_of_a_scrape_is_a_series_of_its_own(engine: CollectorRegistry) -> None:
    """Two clients of one process may have one name; a repeated series would spoil the whole scrape."""
    plain = parser.text_string_to_metric_families(generate_latest(engine).decode())
    strict = openmetrics_parser.text_string_to_metric_families(exposition.generate_latest(engine).decode())
    seen = [
        [(sample.name, frozenset(sample.labels.items())) for family in families for sample in family.samples]
        for families in (plain, strict)
    ]
    assert len(seen[0]) == len(set(seen[0])) == len(set(seen[1])) == len(seen[1])
    both = [labels for name, labels in seen[0] if name == "kvcached_client_used_bytes"]
    assert [dict(labels)["name"] for labels in both] == ["engine", "engine"]


def test_pools_that_are_closed_or_gone_are_left_out() -> None:
    registry = CollectorRegistry()
    closed, gone = make_pool(), make_pool()
    geometry = Geometry(rows=64, row_bytes=[256], granularity_bytes=4096, page_bytes=4096)
    core = KvPool(Backend.host(), geometry)
    registry.register(PoolCollector({"closed": closed, "gone": gone, "core": core}))
    shown = generate_latest(registry)
    assert b'"closed"' in shown
    assert b'"core"' in shown
    closed.close()
    core.close()
    del gone
    gc.collect()
    shown = generate_latest(registry)
    assert b'"' not in shown


def test_two_pools_may_not_have_one_name() -> None:
    with make_pool() as first, make_pool() as second:
        collector = PoolCollector({"kv": first})
        collector.add("kv", first)
        with pytest.raises(Misuse, match="'kv'"):
            collector.add("kv", second)


def test_pools_may_come_and_go_while_others_scrape() -> None:
    collector = PoolCollector()
    done = threading.Event()
    failures: list[BaseException] = []

    def scrape() -> None:
        try:
            while not done.is_set():
                list(collector.collect())
        except BaseException as error:  # noqa: BLE001 - reported below
            failures.append(error)

    scraper = threading.Thread(target=scrape)
    scraper.start()
    for number in range(200):
        pool = make_pool()
        collector.add(str(number), pool)
        pool.alloc(5)
        pool.close()
    done.set()
    scraper.join()
    assert failures == []


def test_a_ledger_is_shown_with_its_clients(ledger_path: str) -> None:
    ledger = Ledger(ledger_path, 100 << 20)
    registry = CollectorRegistry()
    registry.register(LedgerCollector(ledger_path))
    with make_pool(client=ledger.register(name="a", limit_bytes=50 << 20, priority=3)) as pool:
        pool.alloc(10)
        (info,) = ledger.snapshot().clients
        labels = {"device": "host0", "name": "a", "kind": "kv", "pid": str(info.pid), "slot": str(info.slot)}
        for field, metric in CLIENT_METRICS.items():
            shown = registry.get_sample_value(f"kvcached_client_{metric}", labels)
            assert shown == getattr(info, field), field
        assert registry.get_sample_value("kvcached_ledger_budget_bytes", {"device": "host0"}) == 100 << 20
        shown = registry.get_sample_value("kvcached_ledger_used_bytes", {"device": "host0"})
        assert shown == pool.mapped_bytes > 0


def test_all_devices_are_shown_and_one_that_cannot_be_read_hides_no_other(ledger_path: str) -> None:
    second_path = str(Path(ledger_path).with_name("cuda1.ledger"))
    missing_path = str(Path(ledger_path).with_name("cuda7.ledger"))
    Ledger(ledger_path, 1 << 20)
    Ledger(second_path, 2 << 20)
    registry = CollectorRegistry(auto_describe=True)
    registry.register(LedgerCollector(ledger_path, missing_path, second_path))

    def shown(metric: str) -> list[float | None]:
        return [registry.get_sample_value(metric, {"device": at}) for at in ("host0", "cuda1", "cuda7")]

    assert shown("kvcached_ledger_readable") == [1, 1, 0]
    assert shown("kvcached_ledger_budget_bytes") == [1 << 20, 2 << 20, None]
    with pytest.raises(Misuse, match="file names of their own"):
        LedgerCollector(ledger_path, str(Path(ledger_path).parent / "x" / "host0.ledger"))


def test_without_paths_all_ledgers_of_this_user_are_shown() -> None:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(LedgerCollector())
    assert generate_latest(registry).count(b"\nkvcached_ledger_budget_bytes{") == 0
    path = config.default_ledger_path("host0")
    Path(path).parent.mkdir(mode=0o700)
    Ledger(path, 1 << 20)
    assert registry.get_sample_value("kvcached_ledger_budget_bytes", {"device": "host0"}) == 1 << 20


def test_no_file_or_folder_spoils_a_scrape(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(LedgerCollector())
    path = config.default_ledger_path("host0")
    folder = Path(path).parent
    folder.mkdir(mode=0o700)
    Ledger(path, 1 << 20)
    (folder / "junk.ledger").write_bytes(b"junk")
    (folder / "folder.ledger").mkdir()
    (folder / "link.ledger").symlink_to(tmp_path / "nothing")
    os.mkfifo(folder / "pipe.ledger")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\n.ledger")).write_bytes(b"")
    shown = generate_latest(registry).decode()
    assert 'kvcached_ledger_budget_bytes{device="host0"} 1.048576e+06' in shown
    assert shown.count("\nkvcached_ledger_readable{") == 6
    assert 'device="\\\\udcff\\\\n"' in shown
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("no folder")
    assert "\nkvcached_ledger_readable{" not in generate_latest(registry).decode()


def test_a_scrape_never_walks_page_tables(engine: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `kvctl` shows of the kernel's account takes the longer the more is mapped."""

    def walk(pid: int, base: int, nbytes: int) -> int:
        raise AssertionError("a scrape walked page tables")

    monkeypatch.setattr(proc, "rss_bytes", walk)
    assert b"kvcached_client_used_bytes{" in generate_latest(engine)


def test_importing_the_collectors_needs_no_prometheus_client() -> None:
    script = (
        "import sys; import kvcached.metrics; assert not {'prometheus_client', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
