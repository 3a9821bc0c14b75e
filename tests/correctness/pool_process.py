"""Another process that holds KV memory, for tests of who gets the budget."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

_ROOT = Path(__file__).resolve().parents[2]


class PoolProcess:
    """Speaks to one `kv_worker`. Leaving the context kills it, which alone must return its memory."""

    def __init__(self) -> None:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("KVCACHED_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.correctness.kv_worker"],
            cwd=_ROOT,
            env=inherited | {"OMP_NUM_THREADS": "1", "KVCACHED_HOST_STRICT": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, command: str, **arguments: Any) -> Any:
        """One command and its answer. Raises RuntimeError when the worker died of it (see its stderr)."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the worker has no pipes")
        self._process.stdin.write(json.dumps({"command": command, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with status {self._process.wait(10)} on {command}")
        return json.loads(line)

    def kill(self) -> None:
        """SIGKILL and wait."""
        self._process.kill()
        self._process.wait(timeout=10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
