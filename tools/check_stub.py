"""Compare kvcached/_core.pyi with what pybind11-stubgen reads out of the compiled module.

The committed stub is written by hand: shorter, with plain types where the generator spells out conversions.
So the two are compared by what a caller can get wrong: names, parameters with kinds and defaults, properties.

Usage: python tools/check_stub.py   (exit status 1 and a diff when they disagree)
"""

from __future__ import annotations

import ast
import difflib
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = "kvcached._core"
COMMITTED = Path(__file__).resolve().parents[1] / "kvcached" / "_core.pyi"


def describe(source: str) -> list[str]:
    """One line per public class, function, method and property, sorted."""
    lines = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            lines.append(f"class {node.name}")
            members = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            lines += [f"{node.name}.{_signature(item)}" for item in members if _is_public(item.name)]
        elif isinstance(node, ast.FunctionDef) and _is_public(node.name):
            lines.append(_signature(node))
    return sorted(lines)


def generated() -> str:
    """The stub of the installed module as pybind11-stubgen writes it."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pybind11_stubgen", MODULE, "-o", folder], check=True, capture_output=True
        )
        return Path(folder, *MODULE.split(".")).with_suffix(".pyi").read_text()


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name == "__init__"


def _signature(node: ast.FunctionDef) -> str:
    if any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list):
        return f"{node.name} (property)"
    arguments = node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    marks = "".join(f"@{ast.unparse(mark)} " for mark in node.decorator_list)
    return f"{marks}{node.name}({ast.unparse(arguments)})"


def main() -> int:
    """Print the difference; the number of disagreements decides the exit status."""
    committed, compiled = describe(COMMITTED.read_text()), describe(generated())
    diff = list(difflib.unified_diff(committed, compiled, str(COMMITTED), MODULE, lineterm="", n=0))
    print("\n".join(diff) if diff else f"{COMMITTED.name} agrees with {MODULE}: {len(compiled)} signatures")
    return 1 if diff else 0


if __name__ == "__main__":
    sys.exit(main())
