"""A real SGLang engine on the CPU as a subprocess, with or without kvcached. Shared by tests and benches.

The engine runs in its own session with a private TMPDIR. Closing it kills its processes, whatever group they
are in by then, and removes the shared-memory files they had mapped, which SGLang leaves behind however it
ends. A guard does the same when the test run is killed.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from tests.correctness import engine_family

READY_TIMEOUT_S = 180.0
REQUEST_TIMEOUT_S = 180.0
_LOG_TAIL_CHARACTERS = 4000
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Elastic:
    """How kvcached is switched on in an engine. None leaves a variable unset (the engine's default)."""

    ledger: Path
    budget_bytes: int
    name: str
    floor_bytes: int | None = None
    limit_bytes: int | None = None

    def environment(self) -> dict[str, str]:
        """Variables for the engine. Strict host memory: reading a row without memory kills the engine."""
        settings = {
            "KVCACHED_ENABLE": "1",
            "KVCACHED_LEDGER": str(self.ledger),
            "KVCACHED_BUDGET_BYTES": str(self.budget_bytes),
            "KVCACHED_NAME": self.name,
            "KVCACHED_HOST_STRICT": "1",
        }
        optional = {"KVCACHED_FLOOR_BYTES": self.floor_bytes, "KVCACHED_LIMIT_BYTES": self.limit_bytes}
        return settings | {key: str(value) for key, value in optional.items() if value is not None}


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What to launch. `elastic=None` is stock SGLang, with the plugin named in no way."""

    model: Path
    max_total_tokens: int = 8192
    max_running_requests: int = 16
    chunked_prefill_size: int | None = None
    dtype: str | None = None
    context_length: int | None = None
    page_size: int | None = None
    overlap_schedule: bool = False
    sleep_on_idle: bool = True
    elastic: Elastic | None = None
    extra_arguments: tuple[str, ...] = ()
    extra_environment: dict[str, str] = field(default_factory=dict)

    def arguments(self, port: int) -> list[str]:
        """The launch line for one loopback port."""
        line = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(self.model)]
        line += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
        line += ["--attention-backend", "torch_native", "--skip-server-warmup", *self.extra_arguments]
        line += ["--max-total-tokens", str(self.max_total_tokens)]
        line += ["--max-running-requests", str(self.max_running_requests)]
        optional = {
            "--chunked-prefill-size": self.chunked_prefill_size,
            "--dtype": self.dtype,
            "--context-length": self.context_length,
            "--page-size": self.page_size,
        }
        for option, value in optional.items():
            if value is not None:
                line += [option, str(value)]
        switches = {
            "--disable-overlap-schedule": not self.overlap_schedule,
            "--sleep-on-idle": self.sleep_on_idle,
        }
        return line + [switch for switch, is_on in switches.items() if is_on]

    def environment(self, private_dir: Path) -> dict[str, str]:
        """This process's environment, without any kvcached setting of its own, plus what the engine needs."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("KVCACHED_")}
        own = {
            "SGLANG_USE_CPU_ENGINE": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
            "TMPDIR": str(private_dir),
        }
        elastic = self.elastic.environment() if self.elastic else {}
        return inherited | own | elastic | self.extra_environment


@dataclass(frozen=True, slots=True)
class Completion:
    """One request's greedy answer."""

    output_ids: tuple[int, ...]
    gaps: tuple[float, ...]
    """Per output token: log-probability of the likeliest token minus that of the second."""
    finish: str
    """`stop`, `length` or `abort`."""
    prompt_tokens: int
    cached_tokens: int
    retractions: int


class EngineDiedError(RuntimeError):
    """The engine ended, or did not become ready in time. The message ends with its log."""


class EngineLeftError(RuntimeError):
    """Processes of a closed engine do not end. The message names them."""


class RequestRefusedError(RuntimeError):
    """The engine answered a request with an HTTP error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"status {status}: {message}")
        self.status = status
        self.message = message


class Engine:
    """A running engine. `start` returns at once, so that two engines can load at the same time.

    >>> with Engine(EngineSpec(Path("models/tiny"))) as engine:  # doctest: +SKIP
    ...     engine.wait_ready()
    ...     engine.generate([1, 2, 3], max_new_tokens=4).output_ids
    """

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self._private_dir = Path(tempfile.mkdtemp(prefix="engine-"))
        self._log_path = self._private_dir / "engine.log"
        self._port = _free_port()
        self._log: IO[bytes] = self._log_path.open("wb")
        # Start engines on the main thread: the death signal comes when the *thread* that started them ends.
        self._process = subprocess.Popen(
            spec.arguments(self._port),
            env=spec.environment(self._private_dir),
            cwd=self._private_dir,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        self._guard = subprocess.Popen(
            [sys.executable, "-I", engine_family.__file__, str(self.pid), str(self._private_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C and a kill of the test run's group are not for it
        )

    @property
    def pid(self) -> int:
        """The launcher's pid, which is also the id of the engine's process group."""
        return self._process.pid

    def pids(self) -> list[int]:
        """All live processes of the engine."""
        return engine_family.family(self.pid, self._private_dir)

    def scheduler_pid(self) -> int:
        """The process that runs the model. Raises EngineDiedError where there is none (yet)."""
        for pid in self.pids():
            if b"sglang::scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise EngineDiedError(f"no scheduler process in group {self.pid}\n{self._tail()}")

    def log(self) -> str:
        """Everything the engine has printed so far."""
        return self._log_path.read_text(errors="replace")

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return once the engine serves. Raises EngineDiedError with the end of its log."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise EngineDiedError(f"ended with {self._process.returncode} while loading\n{self._tail()}")
            try:
                self.get("/model_info", timeout_s=5.0)
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.1)
            else:
                return
        raise EngineDiedError(f"not ready after {timeout_s:.0f} s\n{self._tail()}")

    def is_alive(self) -> bool:
        """Whether the launcher runs; it ends itself when the scheduler dies."""
        return self._process.poll() is None

    def generate(
        self,
        input_ids: Sequence[int],
        max_new_tokens: int,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        **sampling: Any,
    ) -> Completion:
        """Greedy tokens for one prompt. Raises RequestRefusedError for an HTTP error."""
        return self.generate_together([input_ids], [max_new_tokens], timeout_s=timeout_s, **sampling)[0]

    def generate_together(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: Sequence[int],
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        **sampling: Any,
    ) -> list[Completion]:
        """Greedy tokens for several prompts that arrive in one message, in this order.

        Token ids instead of text make SGLang hand the whole list to its scheduler at once, so the batches it
        forms depend on the order alone and not on timing.
        """
        body = {
            "input_ids": [list(ids) for ids in prompts],
            "sampling_params": [{"temperature": 0, "max_new_tokens": n, **sampling} for n in max_new_tokens],
            "return_logprob": True,
            "top_logprobs_num": 2,
        }
        answers = self.post("/generate", body, timeout_s=timeout_s)
        return [_completion(answer) for answer in answers]

    def flush_cache(self, timeout_s: float = 30.0) -> None:
        """Drop the prefix cache once the engine is idle. Raises RequestRefusedError when it never was."""
        self.post(f"/flush_cache?timeout={timeout_s:.0f}", None, timeout_s=timeout_s + 10.0)

    def get(self, path: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """GET, decoded where the answer is JSON."""
        request = urllib.request.Request(self._url(path))
        return self._request(request, timeout_s)

    def post(self, path: str, body: Any, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """POST, decoded where the answer is JSON. Raises RequestRefusedError for an HTTP error."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url(path), data, headers)
        return self._request(request, timeout_s)

    def close(self) -> None:
        """Kill all its processes, wait for them, remove what they left in /dev/shm. Idempotent.

        Raises EngineLeftError when some do not end; the guard goes on trying then.
        """
        if self._log.closed:
            return
        self._log.close()
        left = engine_family.kill_family(self.pid, self._private_dir)
        names = ", ".join(f"{pid} ({_title(pid)})" for pid in left)
        self._process.poll()  # nobody's zombie
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        if left:
            raise EngineLeftError(f"still there {engine_family.KILL_TIMEOUT_S:.0f} s after kill -9: {names}")
        self._process.wait(timeout=30.0)
        self._guard.wait(timeout=30.0)
        shutil.rmtree(self._private_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}"

    def _request(self, request: urllib.request.Request, timeout_s: float) -> Any:
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                text = response.read().decode()
        except urllib.error.HTTPError as error:
            raise RequestRefusedError(error.code, error.read().decode(errors="replace")) from error
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text

    def _tail(self) -> str:
        return self.log()[-_LOG_TAIL_CHARACTERS:]


def _completion(answer: dict[str, Any]) -> Completion:
    meta = answer["meta_info"]
    return Completion(
        output_ids=tuple(answer["output_ids"]),
        gaps=tuple(float(top[0][0] - top[1][0]) for top in meta["output_top_logprobs"]),
        finish=meta["finish_reason"]["type"],
        prompt_tokens=meta["prompt_tokens"],
        cached_tokens=meta["cached_tokens"],
        retractions=meta.get("num_retractions", 0),
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "gone meanwhile"
