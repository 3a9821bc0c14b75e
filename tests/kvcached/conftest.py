"""Fixtures of the kvcached tests: a private ledger, a clean environment, children that are always ended."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT_S = 60
"""Bound on every wait for a child: far above what it takes, so that a hang fails instead of blocking."""


class Child:
    """A Python process running given code; its standard output is read line by line with a bounded wait."""

    def __init__(self, code: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler=0", "-u", "-c", textwrap.dedent(code), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def line(self) -> str:
        """The next line the child prints; empty once its output has ended."""
        return self._lines.get(timeout=WAIT_S).rstrip("\n")

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)

    def end(self) -> int:
        """Close the child's input, wait for its end, and give its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(WAIT_S)

    def errors(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        self._reader.join(WAIT_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


class StartChild(Protocol):
    def __call__(self, code: str, *arguments: str) -> Child: ...


@pytest.fixture
def start_child() -> Iterator[StartChild]:
    """Start Python code in another process: ``start_child(code, *argv)``."""
    children: list[Child] = []

    def start(code: str, *arguments: str) -> Child:
        children.append(Child(code, *arguments))
        return children[-1]

    yield start
    for child in children:
        child.close()


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the machine leaks in, and default ledgers lie in a private folder."""
    for variable in [name for name in os.environ if name.startswith("KVCACHED_")]:
        monkeypatch.delenv(variable)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))


@pytest.fixture
def ledger_path(tmp_path: Path) -> str:
    """Where a ledger may be made: a folder of our own, mode 0700."""
    folder = tmp_path / "ledgers"
    folder.mkdir(mode=0o700)
    return str(folder / "host0.ledger")
