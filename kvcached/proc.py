"""What the kernel says about processes and memory: an account that does not depend on our own counters.

Linux only; reads ``/proc``. Used by ``kvctl`` and by whoever samples engines from outside.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PRESENT = 1 << 63
_PAGEMAP_CHUNK_ENTRIES = 1 << 16


@dataclass(frozen=True, slots=True)
class Process:
    """One live process of this user."""

    pid: int
    parent_pid: int
    title: str
    """The first word of the command line; engines write a title there, such as ``sglang::scheduler_TP0``."""


def mem_available_bytes() -> int:
    """MemAvailable of ``/proc/meminfo``: what could be allocated without swapping."""
    with Path("/proc/meminfo").open(encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable: a Linux kernel of 3.14 or newer is needed")


def rss_bytes(pid: int, base: int, nbytes: int) -> int:
    """Physical memory behind ``[base, base + nbytes)`` of a process, as the kernel accounts for it.

    Sums ``Rss`` over the mappings of ``/proc/PID/smaps`` inside the range. A mapping that the kernel merged
    with a neighbour crosses the border; for it the pages inside are counted in ``/proc/PID/pagemap`` instead.

    Raises:
        ProcessLookupError: no such process (any more). PermissionError: another user's process.
    """
    end = base + nbytes
    total = 0
    try:
        for start, stop, rss in _mappings(pid):
            if stop <= base or start >= end or rss == 0:
                continue
            inside = base <= start and stop <= end
            total += rss if inside else _present_bytes(pid, max(start, base), min(stop, end))
    except FileNotFoundError:
        raise ProcessLookupError(f"process {pid} is gone") from None
    return total


def processes(title_prefix: str) -> list[Process]:
    """Live processes of this user whose command line starts with a prefix, by pid."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid != os.getuid():
                continue
            process = _process(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked
        if process.title.startswith(title_prefix):
            found.append(process)
    return sorted(found, key=lambda process: process.pid)


def deleted_mappings(suffix: str, paths: Iterable[str] = ()) -> list[tuple[int, str]]:
    """(pid, path) of files that a live process of this user maps though they were deleted or replaced.

    Only paths that end with `suffix` or are among `paths`.
    """
    mark, named = " (deleted)", frozenset(paths)
    found = set()
    for process in processes(""):
        try:
            lines = Path(f"/proc/{process.pid}/maps").read_text("utf-8", "surrogateescape").splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked
        for line in lines:
            if not line.endswith(mark):
                continue
            # "start-end perms offset device inode   path": the path may hold spaces
            path = line.removesuffix(mark).split(maxsplit=5)[-1]
            if path.endswith(suffix) or path in named:
                found.add((process.pid, path))
    return sorted(found)


def environment(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty when it overwrote that memory (setproctitle does).

    Raises ProcessLookupError or PermissionError like :func:`rss_bytes`.
    """
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            raw = file.read()
    except FileNotFoundError:
        raise ProcessLookupError(f"process {pid} is gone") from None
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def _process(pid: int) -> Process:
    with Path(f"/proc/{pid}/cmdline").open("rb") as file:
        title = file.read(4096)
    with Path(f"/proc/{pid}/stat").open("rb") as file:
        # "pid (comm) state ppid ...": comm may hold spaces and brackets, so read from the last bracket on
        parent_pid = int(file.read().rpartition(b")")[2].split()[1])
    return Process(pid, parent_pid, os.fsdecode(title.split(b"\0", 1)[0]))


def _mappings(pid: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, rss_bytes) of every mapping, in address order."""
    start = stop = 0
    with Path(f"/proc/{pid}/smaps").open("rb") as lines:
        for line in lines:
            if line.startswith(b"Rss:"):
                yield start, stop, int(line.split()[1]) * 1024
            elif line[:1] in b"0123456789abcdef":
                first, _, rest = line.partition(b"-")
                start, stop = int(first, 16), int(rest.split(b" ", 1)[0], 16)


def _present_bytes(pid: int, start: int, stop: int) -> int:
    """Bytes of resident pages in ``[start, stop)``; the shared zero page counts here, unlike in Rss."""
    present = 0
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as file:
        first, last = start // _PAGE_BYTES, -(-stop // _PAGE_BYTES)
        for page in range(first, last, _PAGEMAP_CHUNK_ENTRIES):
            count = min(_PAGEMAP_CHUNK_ENTRIES, last - page)
            raw = os.pread(file.fileno(), count * 8, page * 8)
            present += sum(1 for entry in struct.unpack(f"{len(raw) // 8}Q", raw) if entry & _PRESENT)
    return present * _PAGE_BYTES
