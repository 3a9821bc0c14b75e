"""C++ programs that stand beside the tests: built as `make test-cpp` builds them, and run for their figures."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "tests"


def run_program(name: str, timeout_s: float) -> dict[str, float]:
    """Build the CMake target `name`, run it, and read the JSON object that it prints last."""
    cmake = _tool("cmake")
    if not (BUILD / "build.ninja").exists():
        options = ("CMAKE_BUILD_TYPE=RelWithDebInfo", "KVCACHED_BUILD_TESTS=ON", "KVCACHED_BUILD_MODULE=OFF")
        flags = [f"-D{option}" for option in (f"CMAKE_MAKE_PROGRAM={_tool('ninja')}", *options)]
        _run([cmake, "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja", *flags], 120)
    _run([cmake, "--build", str(BUILD), "--parallel", "2", "--target", name], 900)
    output = _run([str(BUILD / "csrc" / "tests" / name)], timeout_s)
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


def _tool(name: str) -> str:
    """A build tool of this environment, or of the machine."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    found = shutil.which(name, path=path)
    if found is None:
        raise SystemExit(f"{name} is missing: run `make env`, or install it")
    return found


def _run(command: list[str], timeout_s: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
