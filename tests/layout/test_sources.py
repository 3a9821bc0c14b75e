"""Rules about where things may stand, read from the source text."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
CORE_FORBIDDEN = re.compile(
    r"^\s*(?:import|from)\s+(?:time|asyncio|random|socket|datetime|threading|subprocess|torch)\b",
    re.MULTILINE,
)


def sources(*folders: str) -> list[Path]:
    return [p for folder in folders for p in sorted((CSRC / folder).rglob("*.[ch]pp"))]


def includes(path: Path) -> list[str]:
    return INCLUDE.findall(path.read_text())


def test_only_bindings_know_python() -> None:
    found = [
        p
        for p in sorted(CSRC.rglob("*.[ch]pp"))
        if any(re.match(r"Python\.h|pybind11/", i) for i in includes(p))
    ]
    assert found, "no binding includes pybind11: does the pattern still match?"
    assert {p.relative_to(CSRC).parts[0] for p in found} == {"bindings"}


def test_official_cuda_header_is_for_the_abi_check_only() -> None:
    users = {
        p.name for p in CSRC.rglob("*.[ch]pp") if any(i in ("cuda.h", "cudaTypedefs.h") for i in includes(p))
    }
    assert all("abi" in name for name in users)


@pytest.mark.parametrize(
    ("folder", "may_include"),
    [
        ("vmm", {"vmm"}),
        ("pool", {"vmm", "pool"}),
        ("ledger", {"vmm", "ledger"}),
        ("arena", {"vmm", "pool", "ledger", "arena"}),
    ],
)
def test_include_layers(folder: str, may_include: set[str]) -> None:
    files = sources(folder)
    assert files
    for path in files:
        layers = {i.split("/")[0] for i in includes(path) if "/" in i and (CSRC / i.split("/")[0]).is_dir()}
        assert layers <= may_include, f"{path.relative_to(ROOT)} includes {sorted(layers - may_include)}"


def test_nothing_in_the_core_ends_the_process() -> None:
    """An embedded allocator reports: no assert, which a release build drops, and no abort, which it keeps."""
    ends = re.compile(r"^(?!\s*//).*\b(?:assert|abort|_?exit|terminate)\s*\(", re.MULTILINE)
    for path in sources("vmm", "pool", "arena", "ledger", "bindings"):
        found = ends.search(path.read_text())
        assert found is None, f"{path.relative_to(ROOT)}: {found.group().strip()}"


def test_core_reads_no_clock_and_does_no_io() -> None:
    for path in sorted((ROOT / "prism" / "core").glob("*.py")):
        assert not CORE_FORBIDDEN.search(path.read_text()), path


def test_only_the_config_loader_reads_the_environment() -> None:
    readers = {
        p.relative_to(ROOT).as_posix()
        for p in sorted((ROOT / "kvcached").rglob("*.py"))
        if re.search(r"os\.environ|os\.getenv", p.read_text())
    }
    assert readers == {"kvcached/config.py"}
