"""The libcuda stand-in, built for tests in Python."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build_standin(folder: Path) -> Path:
    """Compile the stand-in into `folder`; the path of the library."""
    library = folder / "libcuda_standin.so"
    sources = sorted((ROOT / "csrc" / "tests").glob("libcuda_standin*.cpp"))
    command = ["c++", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{ROOT / 'csrc'}"]
    subprocess.run([*command, *map(str, sources), "-o", str(library), "-ldl"], check=True, timeout=120)
    return library
