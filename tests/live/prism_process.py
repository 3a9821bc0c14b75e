"""A real `prism serve` in a process of its own, for tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import yaml

from prism.live.guest_files import load_record
from prism.live.proc_table import SharedFile, process_info, shared_files

WAIT_S = 240.0


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {limit_s} s: {what}")
        time.sleep(0.05)


def alive(pid: int) -> bool:
    info = process_info(pid)
    return info is not None and info.state not in "ZX"


class PrismProcess:
    def __init__(
        self, folder: Path, document: dict[str, Any], environment: dict[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.log_path = folder / "prism.log"
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(document))
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "prism.cli.main", "serve", "-c", str(config)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def url(self) -> str:
        wait_for(lambda: "listening on http" in self.log or self.process.poll() is not None, "listening")
        match = re.search(r"listening on (http://\S+)", self.log)
        assert match, self.log
        return match[1]

    @property
    def runtime_dir(self) -> Path:
        return self.folder / "run"

    def get(self, path: str) -> tuple[int, str]:
        return self.request(path, None)

    def post(self, path: str, body: object, timeout_s: float = 120) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, text = self.request(path, data, timeout_s)
        return status, json.loads(text)

    def request(
        self, path: str, data: bytes | None, timeout_s: float = 120, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        all_headers = {"content-type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url + path, data, all_headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def model(self, name: str) -> dict[str, Any]:
        document = json.loads(self.get("/status")[1])
        return next(model for model in document["models"] if model["name"] == name)

    def wait_phase(self, name: str, phase: str) -> None:
        def there() -> bool:
            assert self.process.poll() is None, self.log
            model = self.model(name)
            assert phase == "failed" or model["phase"] != "failed", (
                f"{model}\n{self.log}\n{self.engine_log(name)}"
            )
            return bool(model["phase"] == phase)

        wait_for(there, f"{name} {phase}")

    def engine_log(self, name: str) -> str:
        paths = [self.folder / "logs" / f"{name}.log", self.runtime_dir / "logs" / f"{name}.log"]
        return "\n".join(path.read_text(errors="replace")[-4000:] for path in paths if path.exists())

    def guests(self) -> tuple[set[int], set[SharedFile]]:
        """Processes (keepers included) and shared files of every engine, as noted by the keepers."""
        pids: set[int] = set()
        files: set[SharedFile] = set()
        for folder in (self.runtime_dir / "engines").glob("*"):
            record = load_record(folder)
            if record is not None:
                pids |= {record.keeper_pid, *record.processes}
                files |= record.files
        return pids, files


def assert_nothing_left(pids: set[int], files: set[SharedFile]) -> None:
    wait_for(lambda: not any(alive(pid) for pid in pids), f"processes {pids} gone", 30)
    assert not files & set(shared_files()), "shared files are left in /dev/shm"
