from __future__ import annotations

import subprocess
import sys

import kvcached
import pytest
from kvcached import errors


def test_import_loads_neither_torch_nor_an_engine_nor_prism() -> None:
    code = (
        "import sys, kvcached; reason = kvcached.cuda_unavailable_reason(); "
        "assert reason is None or reason; "
        "print(sorted({'torch', 'sglang', 'prism'} & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    assert done.stdout.strip() == "[]"


def test_kvctl_loads_no_torch() -> None:
    code = "import sys, kvcached.cli; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", kvcached.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(kvcached, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="alloc_kvcash"):
        _ = kvcached.alloc_kvcash  # type: ignore[attr-defined]


def test_one_error_tree() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.KvcachedError)
        assert name in (errors.__doc__ or "")
    assert issubclass(errors.OutOfMemory, MemoryError)
    assert issubclass(errors.Misuse, ValueError)
    assert issubclass(errors.ConfigError, ValueError)
