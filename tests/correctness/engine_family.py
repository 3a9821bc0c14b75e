"""The processes of one test engine: finding them, killing them, and a guard that does so when the tests die.

Killing a process group is not enough. A process of the engine may have left it; and when the test run itself
is killed, SGLang's children may outlive the launcher: each asks the kernel to be killed with its parent, but
only once it has loaded, and a parent that died before that is never noticed. The guard, a process of its own,
needs nobody to clean up: its standard input ends when the test run does.

Run as `python engine_family.py LEADER FOLDER`, with the standard library only.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KILL_TIMEOUT_S = 30.0
_INTERVAL_S = 0.02
_SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    group: int
    session: int
    folder: str


def family(leader: int, folder: Path) -> list[int]:
    """Live processes of the engine; zombies do not count.

    They are those in the leader's group or session, those that work in its private folder (no process of an
    engine leaves it, whatever session it makes), and what descends from them.
    """
    processes = _processes()
    # "(deleted)" follows the folder's name once somebody removed it.
    places = (str(folder), f"{folder} (deleted)")
    found = {p.pid for p in processes if leader in (p.pid, p.group, p.session) or p.folder in places}
    found.discard(os.getpid())
    while more := {p.pid for p in processes if p.parent in found} - found - {os.getpid()}:
        found |= more
    return sorted(found)


def kill_family(leader: int, folder: Path, timeout_s: float = KILL_TIMEOUT_S) -> list[int]:
    """Kill again and again until nobody is left or time is up; returns the pids that are left.

    Removes what the processes had mapped in /dev/shm once they are gone: SGLang leaves it behind.
    """
    files: set[Path] = set()
    deadline_s = time.monotonic() + timeout_s
    while left := family(leader, folder):
        files |= set(_shared_files(left))
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            return left
        time.sleep(_INTERVAL_S)
    for path in files:
        path.unlink(missing_ok=True)
    return []


def _processes() -> list[_Process]:
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text()
                state, parent, group, session = stat.rpartition(")")[2].split()[:4]
                if state in "ZX":
                    continue
                folder = os.readlink(f"{entry.path}/cwd")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
            except PermissionError:
                folder = ""  # another user's
            found.append(_Process(int(entry.name), int(parent), int(group), int(session), folder))
    return found


def _shared_files(pids: Sequence[int]) -> list[Path]:
    """Files in /dev/shm that these processes map, by inode: a semaphore is mapped under a name it lost."""
    mapped = set()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        mapped |= {int(line.split()[4]) for line in lines if " /dev/shm/" in line}
    return [Path(entry.path) for entry in os.scandir(_SHM) if entry.inode() in mapped]


def main() -> int:
    """Wait until standard input ends, then leave nothing of the engine."""
    leader, folder = int(sys.argv[1]), Path(sys.argv[2])
    sys.stdin.buffer.read()
    left = kill_family(leader, folder)
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main())
