"""What a report must say about the software that produced it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

PACKAGES = ("prism-kvcached", "sglang", "torch", "transformers", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def commit(root: Path) -> str:
    """The git commit of the source tree, with `-dirty` when files differ from it; `unknown` outside git."""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--match", "no-tag"]
    try:
        found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return found.stdout.strip() or "unknown"


def hardware() -> dict[str, str | int]:
    """The machine, in the terms that decide the figures."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")),
        platform.machine(),
    )
    return {"cpu": model, "cpus": os.cpu_count() or 0}


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return []
