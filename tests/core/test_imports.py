"""`prism.core` decides only: what it may import is checked on its source."""

import ast
from pathlib import Path

import prism.core

FORBIDDEN = {
    "time", "asyncio", "random", "secrets", "uuid", "datetime", "socket", "os", "sys", "io", "pathlib",
    "logging", "threading", "subprocess", "torch", "numpy", "sglang", "kvcached",
    "prism.live", "prism.sim", "prism.config", "prism.replay", "prism.cli", "prism.traces", "prism.report",
}  # fmt: skip
SOURCES = sorted(Path(prism.core.__file__).parent.glob("*.py"))


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what is imported"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def forbidden_in(source: str) -> set[str]:
    return {
        bad
        for name in imported(ast.parse(source))
        for bad in FORBIDDEN
        if name == bad or name.startswith(bad + ".")
    }


def test_core_imports_nothing_that_acts() -> None:
    assert SOURCES
    for path in SOURCES:
        assert not forbidden_in(path.read_text()), path.name


def test_core_calls_no_builtin_that_acts() -> None:
    for path in SOURCES:
        called = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not called & {"open", "print", "input", "eval", "exec", "__import__", "id", "hash"}, path.name


def test_the_check_can_fail() -> None:
    assert forbidden_in("import time") == {"time"}
    assert forbidden_in("from prism import sim") == {"prism.sim"}
    assert forbidden_in("from asyncio.events import x") == {"asyncio"}
    assert not forbidden_in("from prism.core import events")
