"""The record of one engine's processes and shared files, and the removal of exactly those.

Standard library only.

Stock SGLang leaves `ipc://` files in its temporary folder and `/dev/shm/sglang_loads_*` behind however it
ends; enough of them kill a later start. The record is what lets whoever survives (the keeper, or the next
prism) clean up.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from prism.live.proc_table import (
    ProcessInfo,
    SharedFile,
    all_processes,
    boot_id,
    environment_value,
    family_of,
    mapped_shared_files,
    process_info,
    shared_files,
)

STATE_NAME = "state.json"
TMP_NAME = "tmp"
_KILL_ROUNDS = 200
_KILL_PAUSE_S = 0.02


@dataclass(slots=True)
class GuestRecord:
    """What one engine has started and mapped so far; written to `folder`/state.json at each change."""

    folder: Path
    keeper_pid: int
    processes: dict[int, int] = field(default_factory=dict)  # pid -> start_ticks
    files: set[SharedFile] = field(default_factory=set)

    @property
    def tmp_dir(self) -> Path:
        """The engine's private TMPDIR."""
        return self.folder / TMP_NAME

    def save(self) -> None:
        """Write the record atomically, readable by this user only."""
        document = {
            "boot_id": boot_id(),
            "keeper_pid": self.keeper_pid,
            "processes": [[pid, ticks] for pid, ticks in sorted(self.processes.items())],
            "files": [[file.device, file.inode] for file in sorted(self.files)],
        }
        temporary = self.folder / (STATE_NAME + ".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            json.dump(document, file)
        temporary.replace(self.folder / STATE_NAME)

    def observe(self, older_files: set[SharedFile]) -> bool:
        """Add the family's processes and the shared files they map (not those of `older_files`).

        True on change.
        """
        before = (len(self.processes), len(self.files))
        for info in family_of(self.keeper_pid):
            self.processes[info.pid] = info.start_ticks
            self.files |= mapped_shared_files(info.pid) - older_files
        return before != (len(self.processes), len(self.files))


def load_record(folder: Path) -> GuestRecord | None:
    """The record in `folder`; None when there is none, it is unreadable, or the machine was booted since."""
    try:
        document = json.loads((folder / STATE_NAME).read_text(encoding="ascii"))
        record = GuestRecord(
            folder=folder,
            keeper_pid=int(document["keeper_pid"]),
            processes={int(pid): int(ticks) for pid, ticks in document["processes"]},
            files={SharedFile(device=int(device), inode=int(inode)) for device, inode in document["files"]},
        )
        same_boot = document["boot_id"] == boot_id()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if same_boot else None


def kill_family(root_pid: int) -> int:
    """SIGKILL the session and descendants of `root_pid` (itself excepted) until nothing is left.

    Returns how many processes that were.
    """
    killed: set[int] = set()
    for _ in range(_KILL_ROUNDS):
        family = family_of(root_pid)
        if not family:
            break
        for info in family:
            _kill(info)
            killed.add(info.pid)
        _reap()
        time.sleep(_KILL_PAUSE_S)
    return len(killed)


def kill_leftovers(record: GuestRecord) -> int:
    """SIGKILL what a dead keeper left, after proof that it is ours; returns how many processes.

    Proof: pid and start time recorded, or the dead keeper's session together with the engine's private
    TMPDIR.
    """
    killed: set[int] = set()
    for _ in range(_KILL_ROUNDS):
        ours = [info for info in all_processes().values() if _is_ours(record, info)]
        if not ours:
            break
        for info in ours:
            _kill(info)
            killed.add(info.pid)
        time.sleep(_KILL_PAUSE_S)
    return len(killed)


def remove_files(record: GuestRecord) -> list[str]:
    """Remove the noted shared files that no living process maps, and the engine's folder.

    Returns the paths.
    """
    in_use: set[SharedFile] = set()
    for pid in all_processes():
        in_use |= mapped_shared_files(pid)
    removed: list[str] = []
    for identity, path in shared_files().items():
        if identity in record.files and identity not in in_use:
            with contextlib.suppress(OSError):
                Path(path).unlink()
                removed.append(path)
    shutil.rmtree(record.folder, ignore_errors=True)
    return [*removed, str(record.folder)]


def _is_ours(record: GuestRecord, info: ProcessInfo) -> bool:
    if record.processes.get(info.pid) == info.start_ticks:
        return True
    if info.pid == os.getpid() or info.session_id != record.keeper_pid:
        return False
    return environment_value(info.pid, "TMPDIR") == str(record.tmp_dir)


def _kill(info: ProcessInfo) -> None:
    """SIGKILL that very process: the pidfd pins the pid while the start time is compared."""
    try:
        pidfd = os.pidfd_open(info.pid)
    except OSError:
        return
    try:
        now = process_info(info.pid)
        if now is not None and now.start_ticks == info.start_ticks:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        pass  # gone already
    finally:
        os.close(pidfd)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
