"""Nothing of an engine outlives its test: seen on processes that behave as badly as an engine's may."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.correctness import engine_family

PATIENCE_S = 30.0

BAD_FAMILY = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for name in ("stays", "setpgid", "setsid"):
    if os.fork() == 0:
        if name == "setpgid":
            os.setpgid(0, 0)
        if name == "setsid":
            os.setsid()
            if os.fork() > 0:
                os._exit(0)  # its child is nobody's descendant any more
        pathlib.Path(name).write_text(str(os.getpid()))
        time.sleep(600)
time.sleep(600)
"""


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", BAD_FAMILY], cwd=folder, start_new_session=True)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "did not come true"
        time.sleep(0.01)


def children(folder: Path) -> list[int]:
    files = [folder / name for name in ("stays", "setpgid", "setsid")]
    until(lambda: all(file.is_file() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_killing_an_engine_leaves_none_of_its_processes_in_whatever_group(tmp_path: Path) -> None:
    leader = start(tmp_path)
    pids = children(tmp_path)
    assert os.getpgid(pids[1]) != leader.pid != os.getsid(pids[2])
    until(lambda: set(pids) | {leader.pid} == set(engine_family.family(leader.pid, tmp_path)))
    assert engine_family.kill_family(leader.pid, tmp_path) == []
    assert leader.wait() == -signal.SIGKILL
    assert not any(is_running(pid) for pid in pids)


def test_orphans_are_found_when_leader_and_folder_are_gone(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    leader = start(folder)
    pids = children(folder)
    leader.kill()
    leader.wait()
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    until(lambda: set(pids) == set(engine_family.family(leader.pid, folder)))
    assert engine_family.kill_family(leader.pid, folder) == []
    assert not any(is_running(pid) for pid in pids)


def test_the_processes_that_are_left_are_named(tmp_path: Path) -> None:
    leader = start(tmp_path)
    children(tmp_path)
    left = engine_family.kill_family(leader.pid, tmp_path, timeout_s=-1.0)
    assert leader.pid in left
    assert engine_family.kill_family(leader.pid, tmp_path) == []
    leader.wait()


def test_the_guard_cleans_up_after_a_killed_test_run(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    code = f"""
import subprocess, sys, time
leader = subprocess.Popen([sys.executable, "-c", {BAD_FAMILY!r}], cwd={str(folder)!r}, start_new_session=True)
subprocess.Popen(
    [sys.executable, "-I", {engine_family.__file__!r}, str(leader.pid), {str(folder)!r}],
    stdin=subprocess.PIPE,
    start_new_session=True,
)
print(leader.pid, flush=True)
time.sleep(600)
"""
    test_run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert test_run.stdout is not None
    leader_pid = int(test_run.stdout.readline())
    pids = [leader_pid, *children(folder)]
    test_run.kill()
    test_run.wait()
    test_run.stdout.close()
    until(lambda: not any(is_running(pid) for pid in pids) and not folder.exists())
