"""Memory that another process maps: host pages as files without a name, CUDA pages as driver handles."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import kvcached
from kvcached import _core
from kvcached.errors import Misuse, Unavailable

if TYPE_CHECKING:
    from conftest import StartChild

PAGE_BYTES = 64 << 10

IMPORTER = """
import mmap, sys
fd, offset, nbytes = map(int, sys.argv[1:])
memory = mmap.mmap(fd, nbytes, offset=offset)
assert memory[:5] == b"hello", memory[:5]
memory[-5:] = b"world"
"""

OWNER = """
    import sys
    import kvcached
    tensor = kvcached.alloc_virtual_tensor((1 << 18,), "uint8", ledger_path=sys.argv[1], exportable=True)
    kvcached.map(tensor, 0, 1 << 16)
    tensor.tensor[:1 << 16] = 9
    print(tensor.export_page(0)[0])
    sys.stdin.read()
"""


def test_another_process_reads_and_writes_the_same_bytes(ledger_path: str) -> None:
    virtual = kvcached.alloc_virtual_tensor(
        (8 * PAGE_BYTES,), "uint8", ledger_path=ledger_path, budget_bytes=64 << 20, exportable=True
    )
    kvcached.map(virtual, 2 * PAGE_BYTES, 2 * PAGE_BYTES)
    assert virtual.tensor is not None
    pages = virtual.tensor[2 * PAGE_BYTES : 4 * PAGE_BYTES]
    pages[:5] = torch.frombuffer(bytearray(b"hello"), dtype=torch.uint8)
    fd, offset = virtual.export_page(2 * PAGE_BYTES)
    try:
        assert not os.get_inheritable(fd)
        command = [sys.executable, "-c", IMPORTER, str(fd), str(offset), str(2 * PAGE_BYTES)]
        subprocess.run(command, pass_fds=[fd], check=True, timeout=60)
    finally:
        os.close(fd)
    assert bytes(pages[-5:].tolist()) == b"world"
    del pages
    kvcached.free_virtual_tensor(virtual)


def test_only_mapped_pages_of_exportable_tensors_are_exported(ledger_path: str) -> None:
    plain = kvcached.alloc_virtual_tensor(
        (PAGE_BYTES,), "uint8", ledger_path=ledger_path, budget_bytes=64 << 20
    )
    kvcached.map(plain, 0, PAGE_BYTES)
    with pytest.raises(Unavailable, match="ask for exportable memory at creation"):
        plain.export_page(0)
    virtual = kvcached.alloc_virtual_tensor(
        (2 * PAGE_BYTES,), "uint8", ledger_path=ledger_path, exportable=True
    )
    kvcached.map(virtual, 0, PAGE_BYTES)
    for offset, why in ((PAGE_BYTES, "not mapped"), (1, "whole pages"), (2 * PAGE_BYTES, "outside")):
        with pytest.raises(Misuse, match=why):
            virtual.export_page(offset)
    kvcached.free_virtual_tensor(plain)
    kvcached.free_virtual_tensor(virtual)


def test_kv_caches_work_over_exportable_memory() -> None:
    backend = _core.Backend.host(exportable=True)
    assert backend.capabilities.exportable
    assert repr(backend) == "Backend.host(strict=False, exportable=True)"
    with kvcached.KVCachePool(backend, layers=2, rows=1000, row_shape=(8, 64)) as pool:
        rows = pool.alloc(300)
        pool.k[1][rows] = 1.5
        pool.free(rows[100:])
        assert pool.k[1][rows[:100]].eq(1.5).all()
        pool.check_invariants()


def test_peer_fault_07_a_killed_owner_leaves_nothing_but_what_an_importer_holds(
    start_child: StartChild, ledger_path: str
) -> None:
    _core.Ledger(ledger_path, 64 << 20)
    owner = start_child(OWNER, ledger_path)
    number = owner.line()
    assert number, owner.errors()
    with Path(f"/proc/{owner.pid}/fd/{number}").open("r+b", buffering=0) as file:
        imported = mmap.mmap(file.fileno(), PAGE_BYTES)
    owner.kill()
    assert not [path for path in Path("/dev/shm").iterdir() if "kvcached" in path.name]
    assert imported[:] == b"\x09" * PAGE_BYTES
    imported.close()
    assert _core.Ledger(ledger_path).snapshot().used_bytes == 0
