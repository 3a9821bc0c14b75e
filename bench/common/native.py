"""Programs of the C++ tests that benches drive, built with the optimisation that users get."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.common.report import ROOT

_FOLDER = ROOT / "build" / "bench"
_BUILD_LIMIT_S = 600


def build(target: str) -> Path:
    """Build one program of `csrc/tests`; its path. RuntimeError with the tool's words if that fails."""
    path = os.pathsep.join((str(Path(sys.prefix, "bin")), os.environ.get("PATH", os.defpath)))
    cmake, ninja = shutil.which("cmake", path=path), shutil.which("ninja", path=path)
    if cmake is None or ninja is None:
        raise RuntimeError("cmake and ninja are needed: run `make env`, then this environment's python")
    configure = [cmake, "-S", str(ROOT), "-B", str(_FOLDER), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    options = {"CMAKE_BUILD_TYPE": "Release", "KVCACHED_BUILD_TESTS": "ON", "KVCACHED_BUILD_MODULE": "OFF"}
    _run([*configure, *(f"-D{name}={value}" for name, value in options.items())])
    _run([cmake, "--build", str(_FOLDER), "--parallel", "2", "--target", target])
    return _FOLDER / "csrc" / "tests" / target


def run_program(target: str, timeout_s: float) -> dict[str, float]:
    """Build a program, run it, and read the JSON object that it prints last."""
    figures: dict[str, float] = json.loads(_run([str(build(target))], timeout_s).splitlines()[-1])
    return figures


def _run(command: list[str], timeout_s: float = _BUILD_LIMIT_S) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
