"""The keeper: one small process per engine that outlives a `kill -9` of prism just long enough to clean up.

It leads the engine's session. PR_SET_PDEATHSIG alone is not enough: a child of SGLang that asks for it
after its parent has died never gets the signal (an orphaned detokenizer was seen to stay for good). The
keeper instead

- reads its standard input: `term` and `kill` are passed on; end of file means that prism is gone: kill at
  once;
- collects orphans (it is a subreaper), so nothing that the engine started can leave its sight;
- notes the shared files that the engine maps, and removes exactly those, and the engine's folder, at the end.

Run as `python -m prism.live.keeper FOLDER -- COMMAND...`. Standard library only: it costs about 15 MB and
30 ms. Its exit status is the engine's (128 + signal number when a signal ended it).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from prism.live.guest_files import GuestRecord, kill_family, remove_files
from prism.live.proc_table import shared_files

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_EARLY_S = 120.0  # engines map their shared files while they start: look often then
_EARLY_INTERVAL_S = 0.5
_LATE_INTERVAL_S = 15.0


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _start_engine(command: list[str]) -> subprocess.Popen[bytes]:
    keeper_pid = os.getpid()

    def die_with_keeper() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper_pid:  # the keeper died before the call above
            os._exit(1)

    # the keeper has one thread, so running Python between fork and exec is safe here
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_keeper)  # noqa: PLW1509


class _Keeper:
    """The loop: standard input, child deaths, periodic notes."""

    def __init__(self, folder: Path, command: list[str], wake_fd: int) -> None:
        self._older_files = set(shared_files())
        self._record = GuestRecord(folder=folder, keeper_pid=os.getpid())
        self._record.save()
        self._wake_fd = wake_fd
        self._started_s = time.monotonic()
        self._engine = _start_engine(command)

    def run(self) -> int:
        """Until the engine is gone; returns its exit status."""
        self._note()
        next_note_s = 0.0
        status: int | None = None
        while status is None:
            now_s = time.monotonic()
            if now_s >= next_note_s:
                self._note()
                early = now_s - self._started_s < _EARLY_S
                next_note_s = now_s + (_EARLY_INTERVAL_S if early else _LATE_INTERVAL_S)
            readable, _, _ = select.select([0, self._wake_fd], [], [], next_note_s - now_s)
            if 0 in readable and not self._obey(os.read(0, 4096)):
                break
            if self._wake_fd in readable:
                os.read(self._wake_fd, 4096)
            status = self._engine.poll()
            _reap_orphans(self._engine.pid)
        self._note()
        self._engine.kill()
        code = self._engine.wait()  # before the family is reaped, or its status would be lost
        kill_family(os.getpid())
        remove_files(self._record)
        return 128 - code if code < 0 else code

    def _obey(self, data: bytes) -> bool:
        """Carry out what prism wrote; False when the engine must be killed now."""
        if not data or b"kill" in data:
            return False
        if b"term" in data:
            self._note()
            with contextlib.suppress(ProcessLookupError):
                self._engine.send_signal(signal.SIGTERM)
        return True

    def _note(self) -> None:
        if self._record.observe(self._older_files):
            self._record.save()


def _reap_orphans(engine_pid: int) -> None:
    """Collect dead processes that became ours; the engine itself is left to `Popen`."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid == engine_pid:
            return
        os.waitpid(found.si_pid, 0)


def main(argv: list[str]) -> int:
    """Entry point; see the module's docstring."""
    _, folder, separator, *command = [*argv, "", ""]
    command = command[:-2]
    if separator != "--" or not command:
        sys.stderr.write("usage: python -m prism.live.keeper FOLDER -- COMMAND...\n")
        return 2
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # a terminal's Ctrl-C and a service manager's TERM to the group are prism's to handle, through standard
    # input
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return _Keeper(Path(folder), command, wake_read).run()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
