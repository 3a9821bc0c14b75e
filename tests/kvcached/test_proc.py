from __future__ import annotations

import mmap
import os
import subprocess

import numpy as np
import pytest

from kvcached import proc
from kvcached._core import Backend, VirtualRange

PAGE_BYTES = 64 << 10


def test_rss_counts_what_is_mapped_and_nothing_else() -> None:
    memory = VirtualRange(Backend.host(), 64 * PAGE_BYTES, PAGE_BYTES)
    base = memory.base_address
    assert proc.rss_bytes(os.getpid(), base, memory.nbytes) == 0
    memory.map(2 * PAGE_BYTES, 3 * PAGE_BYTES)
    assert proc.rss_bytes(os.getpid(), base, memory.nbytes) == 3 * PAGE_BYTES == memory.mapped_bytes
    memory.unmap(3 * PAGE_BYTES, PAGE_BYTES)
    assert proc.rss_bytes(os.getpid(), base, memory.nbytes) == 2 * PAGE_BYTES
    memory.close()


def test_rss_of_a_part_of_a_mapping() -> None:
    memory = VirtualRange(Backend.host(), 64 * PAGE_BYTES, PAGE_BYTES)
    memory.map(0, 8 * PAGE_BYTES)
    assert (
        proc.rss_bytes(os.getpid(), memory.base_address + 6 * PAGE_BYTES, 58 * PAGE_BYTES) == 2 * PAGE_BYTES
    )
    memory.close()


def test_two_neighbouring_ranges_are_not_mixed_up() -> None:
    # The kernel may merge equal neighbours into one mapping; many small ones make that all but certain.
    ranges = [VirtualRange(Backend.host(), 4 * PAGE_BYTES, PAGE_BYTES) for _ in range(8)]
    for number, memory in enumerate(ranges):
        if number % 4:
            memory.map(0, number % 4 * PAGE_BYTES)
    seen = [proc.rss_bytes(os.getpid(), memory.base_address, memory.nbytes) for memory in ranges]
    assert seen == [number % 4 * PAGE_BYTES for number in range(8)]
    for memory in ranges:
        memory.close()


def test_rss_of_ordinary_memory_agrees() -> None:
    area = mmap.mmap(-1, 1 << 20)
    view = np.frombuffer(area, dtype=np.uint8)
    view[: 10 * mmap.PAGESIZE] = 1
    assert proc.rss_bytes(os.getpid(), view.ctypes.data, 1 << 20) >= 10 * mmap.PAGESIZE
    del view
    area.close()


def test_a_process_that_is_gone() -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait(60)
    with pytest.raises(ProcessLookupError, match=str(ended.pid)):
        proc.rss_bytes(ended.pid, 0, 1 << 20)


def test_processes_by_title_and_their_environment() -> None:
    with subprocess.Popen(
        ["kvcached-test-title", "60"],
        executable="/bin/sleep",
        env={"KVCACHED_ENABLE": "1"},
    ) as sleeper:
        try:
            found = [process for process in proc.processes("kvcached-test-ti") if process.pid == sleeper.pid]
            assert found == [proc.Process(sleeper.pid, os.getpid(), "kvcached-test-title")]
            assert proc.environment(sleeper.pid) == {"KVCACHED_ENABLE": "1"}
        finally:
            sleeper.kill()
