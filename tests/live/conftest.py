"""One real prism with two real engines serves every test of this folder that needs one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.prism_process import PrismProcess

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def tiny_models() -> Path:
    """Folder with tiny-llama and tiny-qwen3, made once per checkout."""
    folder = REPOSITORY / "out" / "test-models"
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, "tools/make_tiny_models.py", str(folder), "--families", "llama", "qwen3"],
        cwd=REPOSITORY,
        check=True,
        timeout=300,
    )
    return folder


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A private folder with a short name: socket paths beneath it are limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="prism-t-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def served(tiny_models: Path) -> Iterator[PrismProcess]:
    """`prism serve` with models llama, qwen3 (ready) and missing (failed), over a shared KV budget."""
    with tempfile.TemporaryDirectory(prefix="prism-t-") as name:
        folder = Path(name)
        engine = {"max_total_tokens": 8192}
        document = {
            "server": {"port": 0, "max_body_bytes": "1MiB"},
            "devices": [{"kv_budget_bytes": "8MiB"}],
            "models": [
                {"name": "llama", "path": str(tiny_models / "tiny-llama"), "engine": engine},
                {"name": "qwen3", "path": str(tiny_models / "tiny-qwen3"), "engine": engine},
                {"name": "missing", "path": "/nowhere/model"},
            ],
            "runtime_dir": "run",
            "log_dir": "logs",
            "event_log": "events.jsonl",
        }
        with PrismProcess(folder, document) as prism:
            prism.wait_phase("llama", "ready")
            prism.wait_phase("qwen3", "ready")
            yield prism
