"""Faults of another router that must be impossible here; the numbers are those of the core's tests."""

from __future__ import annotations

import ast
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

import kvcached
import prism
from prism.config.load import _StrictLoader
from tests.live.prism_process import PrismProcess

SOURCES = sorted(path for package in (kvcached, prism) for path in Path(package.__path__[0]).rglob("*.py"))
RUNS_WHAT_IT_READS = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
BODY = {"model": "llama", "prompt": "hello", "max_tokens": 4}


def test_peer_fault_09_a_model_that_does_not_run_yet(tiny_models: Path, short_dir: Path) -> None:
    """There: three of four requests got a 500, so did a mistake of the client, and anybody could connect."""
    document = {
        "server": {"port": 0},
        "devices": [{"kv_budget_bytes": "8MiB"}],
        "models": [{"name": "llama", "path": str(tiny_models / "tiny-llama")}],
        "runtime_dir": "run",
    }
    with PrismProcess(short_dir, document) as served, ThreadPoolExecutor(5) as clients:
        assert served.model("llama")["phase"] != "ready"
        valid = [clients.submit(served.post, "/v1/completions", BODY) for _ in range(4)]
        too_long = clients.submit(served.post, "/v1/completions", {**BODY, "prompt": "a b " * 20_000})
        assert [answer.result()[0] for answer in valid] == [200] * 4
        status, document = too_long.result()
        assert (status, document["error"]["type"]) == (400, "invalid_request_error")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", served.url)


def imported(source: str) -> set[str]:
    """Top-level packages that a module imports, at whatever depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def called(source: str) -> set[str]:
    """Plain names that a module calls."""
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return {function.id for function in calls if isinstance(function, ast.Name)}


def dangers(source: str) -> set[str]:
    """What of a module could run what it reads."""
    loaders = re.findall(r"yaml\.(?:unsafe_|full_)load|Loader=yaml|torch\.load|allow_pickle", source)
    return imported(source) & RUNS_WHAT_IT_READS | called(source) & {"eval", "exec"} | set(loaders)


def test_peer_fault_10_nothing_that_is_received_can_run() -> None:
    """There: a worker's socket unpickled whatever came in."""
    found = {path: dangers(path.read_text()) for path in SOURCES}
    assert len(found) > 50
    assert {path: what for path, what in found.items() if what} == {}
    assert issubclass(_StrictLoader, yaml.SafeLoader)
    assert not issubclass(_StrictLoader, yaml.FullLoader | yaml.UnsafeLoader)


@pytest.mark.parametrize(
    "source", ["from pickle import loads", "def f(text): return eval(text)", "torch.load(path)"]
)
def test_the_check_of_sources_can_fail(source: str) -> None:
    assert dangers(source)
