from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kvcached
import kvcached_sglang_plugin as plugin
from kvcached import errors


def test_import_loads_neither_torch_nor_an_engine_nor_prism() -> None:
    code = (
        "import sys, kvcached; reason = kvcached.cuda_unavailable_reason(); "
        "assert reason is None or reason; "
        "print(sorted({'torch', 'sglang', 'prism'} & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_kvctl_loads_no_torch() -> None:
    code = "import sys, kvcached.cli; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", kvcached.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(kvcached, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="alloc_kvcash"):
        _ = kvcached.alloc_kvcash


def test_one_error_tree() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.KvcachedError)
        assert name in (errors.__doc__ or "")
    assert issubclass(errors.OutOfMemory, MemoryError)
    assert issubclass(errors.Misuse, ValueError)
    assert issubclass(errors.ConfigError, ValueError)


def imported_packages(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_who_imports_what() -> None:
    package = Path(kvcached.__file__).parent
    imports = {path.name: imported_packages(path) for path in package.glob("*.py")}
    assert {name for name, found in imports.items() if "torch" in found} <= {"tensors.py", "weights.py"}
    assert not {name for name, found in imports.items() if found & {"sglang", "prism"}}
    entry = imported_packages(Path(plugin.__file__))
    assert entry - sys.stdlib_module_names == {"kvcached"}
