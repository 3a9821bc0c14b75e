"""One engine's processes, held through its keeper: start, ask to end, kill, wait, look at the log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prism.live.guest_files import kill_leftovers, load_record, remove_files
from prism.live.proc_table import family_of

if TYPE_CHECKING:
    from pathlib import Path

    from prism.live.launch import Launch

_TAIL_BYTES = 16 * 1024
_ERROR_LINE = re.compile(r"(Error|Exception|SystemExit|refus|kvcached|Killed|not |cannot)", re.IGNORECASE)
_KEEPER_END_S = 15.0


@dataclass(slots=True)
class EngineProcess:
    """A started engine. `folder` holds its TMPDIR and record and goes away with it."""

    pid: int
    url: str
    folder: Path
    log_path: Path
    _process: asyncio.subprocess.Process

    @property
    def exit_code(self) -> int | None:
        """The engine's exit status once it and its keeper are gone."""
        return self._process.returncode

    def pids(self) -> set[int]:
        """Living processes of the engine, its keeper excepted."""
        return {info.pid for info in family_of(self.pid)}

    def ask_to_end(self) -> None:
        """TERM for the engine; it may take 8 s."""
        self._tell(b"term\n")

    def kill(self) -> None:
        """KILL for everything the engine started."""
        self._tell(b"kill\n")

    async def wait(self) -> int:
        """Until the engine and its keeper are gone and their files removed; returns the exit status."""
        code = await self._process.wait()
        if self.folder.exists():  # the keeper itself was killed: do its work
            await asyncio.to_thread(self._clean_up)
        return code

    async def kill_and_wait(self) -> int:
        """Kill now; should even the keeper not answer, end it and clean up here."""
        self.kill()
        try:
            return await asyncio.wait_for(self.wait(), _KEEPER_END_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            return await self.wait()

    def reason(self) -> str:
        """The most telling of the log's last lines, for people."""
        return failure_line(self.log_path)

    def _tell(self, word: bytes) -> None:
        if self._process.stdin is not None and self._process.returncode is None:
            with contextlib.suppress(OSError, RuntimeError):
                self._process.stdin.write(word)

    def _clean_up(self) -> None:
        record = load_record(self.folder)
        if record is not None:
            kill_leftovers(record)
            remove_files(record)


async def start_engine(launch: Launch, *, url: str, folder: Path, log_path: Path) -> EngineProcess:
    """Start the engine under a keeper, in a session of its own, logging to `log_path` (appended, 0600)."""
    descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", "prism.live.keeper", str(folder), "--"),
            *launch.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=descriptor,
            stderr=descriptor,
            env=launch.environment,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    return EngineProcess(pid=process.pid, url=url, folder=folder, log_path=log_path, _process=process)


def free_port() -> int:
    """A loopback port that was free a moment ago. The engine binds it later: a lost race fails that start."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def failure_line(log_path: Path) -> str:
    """The last line of the log that looks like a cause, else the last line."""
    try:
        with log_path.open("rb") as file:
            file.seek(max(0, log_path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return "no log"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"^[\w.]*(Error|Exception|SystemExit|Exit)\b.*:", line)]
    telling = telling or [line for line in lines if _ERROR_LINE.search(line)] or lines or ["the log is empty"]
    return telling[-1][:400]
