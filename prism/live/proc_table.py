"""What /proc says about processes: start times, sessions, mapped shared files. Standard library only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SHARED_MEMORY_DIR = "/dev/shm"  # noqa: S108 (the kernel's own folder)
_MAPS_FIELDS = 6  # address perms offset device inode path


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One row of /proc/PID/stat.

    `start_ticks` (clock ticks since boot) tells a recycled pid from the original.
    """

    pid: int
    parent_pid: int
    session_id: int
    start_ticks: int
    state: str


@dataclass(frozen=True, slots=True, order=True)
class SharedFile:
    """A file beneath /dev/shm, known by inode: glibc maps a named semaphore before it gets its final name."""

    device: int
    inode: int


def boot_id() -> str:
    """Identity of this boot; pids and start times recorded under another one mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def process_info(pid: int) -> ProcessInfo | None:
    """The process's row, or None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # the command name is in parentheses and may hold spaces and parentheses itself
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessInfo(
        pid=pid,
        parent_pid=int(fields[1]),
        session_id=int(fields[3]),
        start_ticks=int(fields[19]),
        state=fields[0],
    )


def all_processes() -> dict[int, ProcessInfo]:
    """Every process visible here that is not a zombie, by pid."""
    found: dict[int, ProcessInfo] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            info = process_info(int(path.name))
            if info is not None and info.state not in "ZX":
                found[info.pid] = info
    return found


def family_of(root_pid: int) -> list[ProcessInfo]:
    """Living processes of the session that `root_pid` leads, and its descendants that left it.

    The root itself is not among them.
    """
    processes = all_processes()
    family = {pid for pid, info in processes.items() if info.session_id == root_pid}
    family.add(root_pid)
    while True:
        more = {pid for pid, info in processes.items() if info.parent_pid in family} - family
        if not more:
            break
        family |= more
    family.discard(root_pid)
    return [processes[pid] for pid in sorted(family) if pid in processes]


def environment_value(pid: int, name: str) -> str | None:
    """The value `name` had when process `pid` was started, or None."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    prefix = name.encode() + b"="
    for pair in pairs:
        if pair.startswith(prefix):
            return os.fsdecode(pair[len(prefix) :])
    return None


def mapped_shared_files(pid: int) -> set[SharedFile]:
    """Files beneath /dev/shm that the process maps, deleted names included."""
    found: set[SharedFile] = set()
    try:
        with Path(f"/proc/{pid}/maps").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if SHARED_MEMORY_DIR not in line:
                    continue
                fields = line.split(maxsplit=_MAPS_FIELDS - 1)
                if len(fields) == _MAPS_FIELDS and fields[5].startswith(SHARED_MEMORY_DIR + "/"):
                    major, minor = fields[3].split(":")
                    device = os.makedev(int(major, 16), int(minor, 16))
                    found.add(SharedFile(device=device, inode=int(fields[4])))
    except OSError:
        return found
    return found


def shared_files() -> dict[SharedFile, str]:
    """Regular files directly beneath /dev/shm, by identity."""
    found: dict[SharedFile, str] = {}
    try:
        entries = list(os.scandir(SHARED_MEMORY_DIR))
    except OSError:
        return found
    for entry in entries:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if entry.is_file(follow_symlinks=False):
            found[SharedFile(device=status.st_dev, inode=status.st_ino)] = entry.path
    return found
