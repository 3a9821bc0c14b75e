"""Engines are expensive to start: each module here starts its own once, at most two at a time."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.correctness.engine import Engine, EngineSpec

ROOT = Path(__file__).resolve().parents[2]
_TINY = "tiny-"


def model_folder(name: str) -> Path:
    """One of the demo's models, or a random model `tiny-FAMILY`, made here.

    Fails, and never skips, when one of the demo's was not made.
    """
    if name.startswith(_TINY):
        folder = ROOT / "out" / "test-models"
        command = [sys.executable, "tools/make_tiny_models.py", str(folder)]
        command += ["--families", name.removeprefix(_TINY)]
        subprocess.run(command, cwd=ROOT, check=True, timeout=300)
        return folder / name
    folder = ROOT / "models" / name
    if not (folder / "made_from.json").is_file():
        pytest.fail(f"{folder} is missing: run `make models` (or python tools/make_models.py) first")
    return folder


@contextmanager
def running(*specs: EngineSpec) -> Iterator[list[Engine]]:
    """These engines, loading side by side and then ready. A failure shows the log of every engine."""
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(spec)) for spec in specs]
        for engine in engines:
            engine.wait_ready()
        try:
            yield engines
        finally:
            for engine in engines:
                if not engine.is_alive():
                    print(f"engine of {engine.spec.model.name} died:\n{engine.log()[-6000:]}")
