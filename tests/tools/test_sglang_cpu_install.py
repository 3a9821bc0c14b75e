"""The installer's decisions: which torch, and that the stand-ins arrive complete."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.sglang_cpu import install

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def test_a_report_that_needs_nvidia_packages_is_a_cuda_build() -> None:
    wheel = {
        "metadata": {
            "name": "torch",
            "requires_dist": ["filelock", "nvidia-cublas==13.1; platform_system == 'Linux'"],
        }
    }
    assert install.requires_cuda({"install": [wheel]})
    wheel["metadata"]["requires_dist"] = ["filelock", "sympy>=1.13"]
    assert not install.requires_cuda({"install": [wheel]})
    assert not install.requires_cuda({"install": [{"metadata": {"name": "torch"}}]})
    assert not install.requires_cuda({})


def fake_torch(folder: Path, cuda: str | None) -> None:
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(f"class version:\n    cuda = {cuda!r}\n")


def test_a_cuda_build_without_a_gpu_stops_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_torch(tmp_path, "13.0")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(install, "NVIDIA_DEVICE", tmp_path / "no-device")
    with pytest.raises(install.InstallError, match="make demo TORCH_INDEX=https://"):
        install.refuse_cuda_build()


def test_a_cuda_build_with_a_gpu_and_a_cpu_build_without_one_are_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "device"
    monkeypatch.setattr(install, "NVIDIA_DEVICE", device)
    fake_torch(tmp_path / "cpu", None)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "cpu"))
    install.refuse_cuda_build()
    fake_torch(tmp_path / "cuda", "13.0")
    device.touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "cuda"))
    install.refuse_cuda_build()


def test_the_stand_ins_are_copied_whole_and_replace_older_ones(tmp_path: Path) -> None:
    old = tmp_path / "sglang_cpu_shim"
    old.mkdir()
    (old / "left_over.py").touch()
    install.install_shim(tmp_path)
    install.install_shim(tmp_path)
    source = TOOLS / "sglang_cpu" / "shim" / "sglang_cpu_shim"
    assert {path.name for path in old.glob("*.py")} == {path.name for path in source.glob("*.py")}
    assert "activate()" in (tmp_path / "sglang_cpu_shim.pth").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sglang_cpu_shim", "sglang_cpu_shim.pth"]


def test_outside_an_environment_nothing_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["install.py"])
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert install.main() == 1
    assert "not in a virtual environment" in capsys.readouterr().err


def test_a_failing_pip_is_an_install_error() -> None:
    with pytest.raises(install.InstallError, match="no-such-command failed"):
        install.pip("no-such-command")


@pytest.mark.parametrize(
    "name", ["requirements-dev.txt", "sglang_cpu/requirements.txt", "sglang_cpu/requirements-no-deps.txt"]
)
def test_every_requirement_is_pinned(name: str) -> None:
    lines = [line.split("#")[0].strip() for line in (TOOLS / name).read_text().splitlines()]
    named = [line for line in lines if line]
    assert named
    assert [line for line in named if "==" not in line] == []
