from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import kvcached
from kvcached import api, proc
from kvcached._core import Ledger
from kvcached.config import default_ledger_path
from kvcached.errors import ConfigError, LedgerRefused, Misuse, OutOfMemory, Unavailable

if TYPE_CHECKING:
    from conftest import StartChild

PAGE_BYTES = 64 << 10
README = Path(__file__).parents[2] / "README.md"


def docstring_example() -> str:
    return textwrap.dedent((api.__doc__ or "").partition("Example::\n\n")[2]).strip()


def test_the_example_runs() -> None:
    example = docstring_example()
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "example", "exec"), {})  # noqa: S102 - our own text
    match = re.fullmatch(r"(\d+) KiB mapped of (\d+) MiB reserved\n", printed.getvalue())
    assert match is not None
    assert int(match[1]) << 10 < int(match[2]) << 20
    assert Ledger(default_ledger_path("host0")).snapshot().used_bytes == 0


@pytest.mark.skipif(not README.exists(), reason="no README in this tree")
def test_the_readme_shows_the_example_that_is_tested() -> None:
    assert docstring_example() in README.read_text()


@pytest.mark.skipif(not README.exists(), reason="no README in this tree")
def test_what_the_readme_shows_of_the_library_runs(start_child: StartChild) -> None:
    section = README.read_text().partition("## As a library")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 2
    child = start_child("\n".join(blocks) + "print('end')")
    printed = []
    while (line := child.line()) not in ("end", ""):
        printed.append(line)
    assert child.end() == 0, child.errors()
    for series in (
        'kvcached_pool_capacity_rows{pool="full"}',
        'kvcached_pool_mapped_bytes{pool="window"}',
        'kvcached_ledger_budget_bytes{device="host0"}',
        'kvcached_client_used_bytes{device="host0",kind="kv",name="chat.window",',
    ):
        assert any(line.startswith(series) for line in printed), series


def test_both_columns_of_the_table_are_public() -> None:
    for name in (
        *("alloc_kvcache", "free_kvcache", "alloc_kv", "free_kv"),
        *("alloc_virtual_tensor", "free_virtual_tensor", "map", "unmap"),
    ):
        assert getattr(kvcached, name) is getattr(api, name)


def test_a_cache_uses_the_settings_and_the_arguments_win(
    monkeypatch: pytest.MonkeyPatch, ledger_path: str
) -> None:
    monkeypatch.setenv("KVCACHED_LEDGER", ledger_path)
    monkeypatch.setenv("KVCACHED_BUDGET_BYTES", "64MiB")
    monkeypatch.setenv("KVCACHED_NAME", "from-env")
    monkeypatch.setenv("KVCACHED_FLOOR_BYTES", "1MiB")
    monkeypatch.setenv("KVCACHED_PRIORITY", "3")
    cache = kvcached.alloc_kvcache(layers=1, rows=100, row_shape=(1, 64), limit_bytes=2 << 20)
    ledger = Ledger(ledger_path)
    assert ledger.budget_bytes == 64 << 20
    (client,) = ledger.snapshot().clients
    assert (client.name, client.floor_bytes, client.limit_bytes, client.priority) == (
        "from-env",
        1 << 20,
        2 << 20,
        3,
    )
    second = kvcached.alloc_kvcache(layers=1, rows=100, row_shape=(1, 64), name="from-argument")
    assert {client.name for client in ledger.snapshot().clients} == {"from-env", "from-argument"}
    kvcached.free_kvcache(second)
    kvcached.free_kvcache(cache)
    assert ledger.snapshot().used_bytes == 0


def test_a_limit_stops_one_cache_and_not_its_neighbour(ledger_path: str) -> None:
    small = kvcached.alloc_kvcache(
        layers=1,
        rows=4096,
        row_shape=(8, 64),
        limit_bytes=8 * PAGE_BYTES,
        ledger_path=ledger_path,
        budget_bytes=64 << 20,
    )
    large = kvcached.alloc_kvcache(layers=1, rows=4096, row_shape=(8, 64), ledger_path=ledger_path)
    with pytest.raises(OutOfMemory):
        kvcached.alloc_kv(small, 1000)
    assert len(kvcached.alloc_kv(large, 1000)) == 1000
    kvcached.free_kvcache(small)
    kvcached.free_kvcache(large)


def test_floors_that_do_not_fit_are_refused(ledger_path: str) -> None:
    first = kvcached.alloc_kvcache(
        layers=1,
        rows=64,
        row_shape=(8, 64),
        floor_bytes=6 << 20,
        ledger_path=ledger_path,
        budget_bytes=8 << 20,
    )
    with pytest.raises(LedgerRefused):
        kvcached.alloc_kvcache(
            layers=1, rows=64, row_shape=(8, 64), floor_bytes=6 << 20, ledger_path=ledger_path
        )
    kvcached.free_kvcache(first)


def test_a_wrong_setting_stops_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCACHED_BUDGET", "1GiB")
    with pytest.raises(ConfigError, match="KVCACHED_BUDGET_BYTES"):
        kvcached.alloc_kvcache(layers=1, rows=10, row_shape=(1, 64))
    assert not Path(default_ledger_path("host0")).exists()


def test_unknown_devices() -> None:
    with pytest.raises(Misuse, match="tpu"):
        kvcached.alloc_kvcache(layers=1, rows=10, row_shape=(1, 64), device="tpu")


@pytest.mark.skipif(kvcached.cuda_unavailable_reason() is None, reason="this machine has a CUDA device")
def test_a_missing_gpu_is_said_to_be_missing() -> None:
    with pytest.raises(Unavailable):
        kvcached.alloc_kvcache(layers=1, rows=10, row_shape=(1, 64), device="cuda:0", budget_bytes=1 << 20)


@pytest.mark.skipif(kvcached.cuda_unavailable_reason() is not None, reason="no usable CUDA device")
def test_the_example_on_a_gpu(ledger_path: str) -> None:
    cache = kvcached.alloc_kvcache(
        layers=2,
        rows=100_000,
        row_shape=(8, 64),
        device="cuda:0",
        ledger_path=ledger_path,
        budget_bytes=1 << 30,
    )
    rows = kvcached.alloc_kv(cache, 300)
    content = torch.randn(300, 8, 64, dtype=torch.float16, device="cuda:0")
    cache.k[1][rows.cuda()] = content
    assert torch.equal(cache.k[1][rows.cuda()], content)
    assert 0 < cache.mapped_bytes < cache.geometry.reservation_bytes
    kvcached.free_kv(cache, rows.cuda())
    kvcached.free_kvcache(cache)


def test_a_virtual_tensor_has_memory_only_where_it_is_mapped(ledger_path: str) -> None:
    virtual = kvcached.alloc_virtual_tensor(
        (1000, 1000), torch.float32, page_bytes=PAGE_BYTES, ledger_path=ledger_path, budget_bytes=64 << 20
    )
    memory = virtual.memory
    ledger = Ledger(ledger_path)
    assert memory.nbytes == -(-4_000_000 // PAGE_BYTES) * PAGE_BYTES
    (client,) = ledger.snapshot().clients
    assert (client.range_base, client.range_bytes) == (memory.base_address, memory.nbytes)
    assert proc.rss_bytes(os.getpid(), memory.base_address, memory.nbytes) == 0
    kvcached.map(virtual, PAGE_BYTES, 2 * PAGE_BYTES)
    tensor = virtual.tensor
    assert tensor is not None
    flat = tensor.view(-1)[PAGE_BYTES // 4 : 3 * PAGE_BYTES // 4]
    flat.fill_(2.5)
    assert float(flat.sum()) == 2.5 * flat.numel()
    assert ledger.snapshot().used_bytes == memory.mapped_bytes == 2 * PAGE_BYTES
    assert proc.rss_bytes(os.getpid(), memory.base_address, memory.nbytes) == 2 * PAGE_BYTES
    kvcached.unmap(virtual, PAGE_BYTES, PAGE_BYTES)
    assert proc.rss_bytes(os.getpid(), memory.base_address, memory.nbytes) == PAGE_BYTES
    kvcached.free_virtual_tensor(virtual)
    kvcached.free_virtual_tensor(virtual)
    assert ledger.snapshot().used_bytes == memory.mapped_bytes == 0
    with pytest.raises(Misuse, match="freed"):
        kvcached.map(virtual, 0, PAGE_BYTES)
    del tensor, flat, memory, virtual
    gc.collect()
    assert ledger.snapshot().clients == []


def test_wrong_ranges_of_a_virtual_tensor_change_nothing(ledger_path: str) -> None:
    virtual = kvcached.alloc_virtual_tensor(
        (8 * PAGE_BYTES,),
        torch.uint8,
        page_bytes=PAGE_BYTES,
        ledger_path=ledger_path,
        budget_bytes=4 * PAGE_BYTES,
    )
    kvcached.map(virtual, 0, PAGE_BYTES)
    for offset, nbytes in ((1, PAGE_BYTES), (PAGE_BYTES, 5), (8 * PAGE_BYTES, PAGE_BYTES), (0, PAGE_BYTES)):
        with pytest.raises(Misuse):
            kvcached.map(virtual, offset, nbytes)
    with pytest.raises(Misuse):
        kvcached.unmap(virtual, 0, 2 * PAGE_BYTES)
    with pytest.raises(OutOfMemory):
        kvcached.map(virtual, PAGE_BYTES, 4 * PAGE_BYTES)
    assert virtual.memory.mapped_bytes == PAGE_BYTES
    kvcached.free_virtual_tensor(virtual)


def test_tensors_of_every_width() -> None:
    for dtype in (
        torch.uint8,
        torch.float8_e4m3fn,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
    ):
        virtual = kvcached.alloc_virtual_tensor((3, 5), dtype)
        assert virtual.tensor is not None
        kvcached.map(virtual, 0, virtual.memory.nbytes)
        assert virtual.tensor.dtype == dtype
        assert virtual.tensor.shape == (3, 5)
        assert virtual.tensor.float().abs().sum() == 0 if dtype != torch.complex64 else True
        kvcached.free_virtual_tensor(virtual)


def test_an_empty_tensor_is_misuse() -> None:
    with pytest.raises(Misuse):
        kvcached.alloc_virtual_tensor((0, 5))
