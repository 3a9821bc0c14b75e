"""The committed stub says exactly what the compiled module offers."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import kvcached
from kvcached import _core

STUB = Path(kvcached.__file__).with_name("_core.pyi")


def stub_members() -> dict[str, set[str]]:
    """Top-level names of the stub, each with the public members of a class."""
    members: dict[str, set[str]] = {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ClassDef):
            members[node.name] = {
                item.name
                for item in node.body
                if isinstance(item, ast.FunctionDef) and item.name != "__init__"
            }
        elif isinstance(node, ast.FunctionDef):
            members[node.name] = set()
    return members


def module_members() -> dict[str, set[str]]:
    members: dict[str, set[str]] = {}
    for name, value in vars(_core).items():
        if name.startswith("_"):
            continue
        is_class = inspect.isclass(value)
        own = vars(value) if is_class and not issubclass(value, Exception) else {}
        members[name] = {attribute for attribute in own if not attribute.startswith("_")}
    return members


def test_stub_and_module_name_the_same_things() -> None:
    assert stub_members() == module_members()


def test_everything_public_is_documented() -> None:
    for name, attributes in module_members().items():
        thing = getattr(_core, name)
        assert inspect.getdoc(thing), name
        for attribute in attributes:
            assert inspect.getdoc(getattr(thing, attribute)), f"{name}.{attribute}"
