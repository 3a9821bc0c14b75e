"""`prism serve` as a child process: started, waited for, asked, stopped."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

POLL_S = 0.25
HTTP_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 40.0
LOG_TAIL_LINES = 15
PR_SET_PDEATHSIG = 1


class ServiceError(RuntimeError):
    """The service did not come up or went away; the message says what its log says."""


def effective_config(template: Path, folder: Path, runtime_dir: Path) -> tuple[Path, dict[str, Any]]:
    """Write `template` with a free port and this run's folders filled in; returns (path, document)."""
    document: dict[str, Any] = yaml.safe_load(template.read_text("utf-8"))
    for model in document["models"]:
        model["path"] = str((template.parent / model["path"]).resolve())
    document["server"] = {"host": "127.0.0.1", "port": free_port(), **document.get("server", {})}
    document["runtime_dir"] = str(runtime_dir)
    document["log_dir"] = str(folder / "logs")
    document["event_log"] = str(folder / "events.jsonl")
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
    return path, document


def free_port() -> int:
    """A port nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Service:
    """A running `prism serve`."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self._process = process
        self._log = log
        self.url = url

    def wait_ready(self, timeout_s: float, on_phases: Callable[[dict[str, str]], None]) -> None:
        """Until every model is ready. ServiceError when one failed, the service ended, or time is over."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise ServiceError(f"prism serve ended with {self._process.returncode}:\n{self._tail()}")
            status = self.status()
            phases = {model["name"]: model["phase"] for model in (status or {}).get("models", [])}
            on_phases(phases)
            failed = [m for m in (status or {}).get("models", []) if m["phase"] == "failed"]
            if failed:
                details = "\n".join(f"{m['name']}: {m.get('detail', '')}" for m in failed)
                raise ServiceError(f"an engine did not start (logs: {self._log.parent}):\n{details}")
            if phases and all(phase == "ready" for phase in phases.values()):
                return
            time.sleep(POLL_S)
        raise ServiceError(
            f"models not ready after {timeout_s:g} s (logs: {self._log.parent}):\n{self._tail()}"
        )

    def status(self) -> dict[str, Any] | None:
        """`/status`, or None while nobody answers."""
        try:
            with urllib.request.urlopen(self.url + "/status", timeout=HTTP_TIMEOUT_S) as answer:
                document: dict[str, Any] = json.load(answer)
                return document
        except (OSError, ValueError):
            return None

    def chat(self, model: str, text: str, max_tokens: int) -> str:
        """One short chat answer. ServiceError with the service's message when it refuses."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "temperature": 0,
        }
        request = urllib.request.Request(
            self.url + "/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as answer:
                return str(json.load(answer)["choices"][0]["message"]["content"])
        except urllib.error.HTTPError as error:
            raise ServiceError(
                f"{model}: HTTP {error.code}: {error.read(500).decode('utf-8', 'replace')}"
            ) from error
        except (OSError, ValueError, LookupError) as error:
            raise ServiceError(f"{model}: no usable answer: {error}") from error

    def stop(self) -> int:
        """Stop in order (drain, then the engines); returns the exit status. Kills after a bounded wait."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _tail(self) -> str:
        lines = self._log.read_text("utf-8", "replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])


@contextlib.contextmanager
def serving(config: Path, port: int, log: Path) -> Iterator[Service]:
    """`prism serve` for the duration of the block."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "prism.cli.main", "serve", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl-C reaches it through us, once
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (no threads run yet)
        )
    service = Service(process, f"http://127.0.0.1:{port}", log)
    try:
        yield service
    finally:
        service.stop()


def _die_with_parent() -> None:
    """Ask the kernel to end prism when the demo is killed; its engines follow it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
