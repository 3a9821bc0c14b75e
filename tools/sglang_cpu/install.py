"""Install real SGLang for the CPU: ``.venv/bin/python tools/sglang_cpu/install.py``, into that Python.

Takes about 80 s and 1.7 GB. Steps: PyTorch (a CPU build), SGLang's imports, SGLang itself without its
CUDA dependencies, the stand-ins of ``shim/``, and an import of the engine's server as proof.
See README.md beside it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONSTRAINTS = HERE.parent / "constraints.txt"
TORCH_VERSION = "2.13.0"
CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
SHIM_PACKAGE = "sglang_cpu_shim"
NVIDIA_DEVICE = Path("/dev/nvidiactl")


class InstallError(RuntimeError):
    """A step failed; the message says which and what to do."""


def main() -> int:
    """Run the steps; 1 with a message when one fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--torch-index",
        default="",
        metavar="URL",
        help="package index with PyTorch's CPU wheels; default: the configured index where it offers "
        f"a CPU build, else {CPU_TORCH_INDEX}",
    )
    parser.add_argument("--shim-only", action="store_true", help="only (re)install the stand-ins")
    arguments = parser.parse_args()
    try:
        if sys.prefix == sys.base_prefix:
            raise InstallError(f"{sys.executable} is not in a virtual environment; run: make env")
        if not arguments.shim_only:
            install_torch(arguments.torch_index)
            pip("install", "-c", str(CONSTRAINTS), "-r", str(HERE / "requirements.txt"))
            pip("install", "--no-deps", "-r", str(HERE / "requirements-no-deps.txt"))
        install_shim(Path(sysconfig.get_path("purelib")))
        check_engine_imports()
    except InstallError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def pip(*arguments: str) -> None:
    """Run pip of this Python; InstallError when it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    if subprocess.run([*command, "--quiet"], check=False).returncode != 0:
        raise InstallError(f"{' '.join(command)} failed (its messages are above)")


def install_torch(torch_index: str) -> None:
    """Install PyTorch without CUDA, unless it is there. InstallError where only CUDA builds are offered."""
    if installed_torch_version().split("+")[0] != TORCH_VERSION:
        requirement = f"torch=={TORCH_VERSION}"
        if not torch_index and not NVIDIA_DEVICE.exists() and offers_cuda_build(requirement):
            print(
                f"the configured package index offers a CUDA build of {requirement}; using {CPU_TORCH_INDEX}"
            )
            torch_index = CPU_TORCH_INDEX
        # A local version such as 2.13.0+cpu sorts above 2.13.0, so of both indexes the CPU build is taken.
        extra = ["--extra-index-url", torch_index] if torch_index else []
        pip("install", *extra, "-c", str(CONSTRAINTS), requirement)
    refuse_cuda_build()


def installed_torch_version() -> str:
    """Version of the installed torch, or an empty string."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def offers_cuda_build(requirement: str) -> bool:
    """Whether pip would take a wheel that requires NVIDIA's libraries (asks for metadata only)."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run"]
    command += ["--no-deps", "--ignore-installed", "--report", "-", requirement]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    if found.returncode != 0:
        raise InstallError(f"the package index has no {requirement} for this Python:\n{found.stderr.strip()}")
    return requires_cuda(json.loads(found.stdout))


def requires_cuda(report: dict[str, object]) -> bool:
    """Read a pip installation report: does a picked wheel require NVIDIA packages on this platform?"""
    picked = report.get("install")
    wheels = picked if isinstance(picked, list) else []
    requires = [line for wheel in wheels for line in wheel["metadata"].get("requires_dist", [])]
    return any(line.lower().startswith(("nvidia-", "cuda-")) for line in requires)


def refuse_cuda_build() -> None:
    """InstallError when torch was built for CUDA and this machine has no GPU."""
    command = [sys.executable, "-c", "import torch; print(torch.version.cuda or '')"]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    if found.returncode != 0:
        raise InstallError(f"torch {installed_torch_version()} does not import:\n{found.stderr.strip()}")
    if found.stdout.strip() and not NVIDIA_DEVICE.exists():
        raise InstallError(
            f"torch {installed_torch_version()} is built for CUDA {found.stdout.strip()}, "
            f"but there is no GPU here. "
            f"Remove .venv and run: make demo TORCH_INDEX={CPU_TORCH_INDEX}"
        )


def install_shim(site_packages: Path) -> None:
    """Put the stand-ins into ``site_packages``: the package first, then the .pth file that switches it on.

    Each is copied beside its place and renamed: an interpreter starting meanwhile never sees half of one.
    """
    package = HERE / "shim" / SHIM_PACKAGE
    with tempfile.TemporaryDirectory(prefix=f".{SHIM_PACKAGE}.", dir=site_packages) as scratch:
        fresh = Path(scratch) / SHIM_PACKAGE
        shutil.copytree(package, fresh, ignore=shutil.ignore_patterns("__pycache__"))
        target = site_packages / SHIM_PACKAGE
        if target.exists():
            os.rename(target, Path(scratch) / "old")
        os.rename(fresh, target)
        switch = Path(scratch) / f"{SHIM_PACKAGE}.pth"
        shutil.copyfile(HERE / "shim" / switch.name, switch)
        os.replace(switch, site_packages / switch.name)


def check_engine_imports() -> None:
    """Import the engine's HTTP server in a fresh process; InstallError with its traceback when that fails."""
    command = [sys.executable, "-c", "import sglang.srt.entrypoints.http_server"]
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if found.returncode != 0:
        raise InstallError(f"SGLang does not import on this machine:\n{found.stderr[-4000:]}")


if __name__ == "__main__":
    raise SystemExit(main())
