"""The stand-ins offer names, never results, and only where the real thing is absent."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SHIM = Path(__file__).resolve().parents[2] / "tools" / "sglang_cpu" / "shim"


def python(code: str, tmp_path: Path, **environment: str) -> str:
    """Run code in a fresh interpreter that sees only our shim and `tmp_path`, no site-packages."""
    env = {**os.environ, "PYTHONPATH": f"{SHIM}{os.pathsep}{tmp_path}", **environment}
    found = subprocess.run(
        [sys.executable, "-S", "-c", "import sglang_cpu_shim\n" + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=env,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_calling_a_missing_kernel_raises_and_names_it(tmp_path: Path) -> None:
    out = python(
        """
        assert sglang_cpu_shim.activate()
        from sgl_kernel import rmsnorm
        from sgl_kernel.flash_attn import flash_attn_varlen_func as attention
        for kernel in (rmsnorm, attention, attention.inner):
            try:
                kernel(1, out=2)
            except NotImplementedError as error:
                print(error)
        """,
        tmp_path,
        SGLANG_USE_CPU_ENGINE="1",
    ).splitlines()
    assert len(out) == 3
    assert out[0].startswith("sgl_kernel.rmsnorm needs a GPU build")
    assert out[1].startswith("sgl_kernel.flash_attn.flash_attn_varlen_func needs")


def test_triton_kernels_can_be_written_but_not_launched(tmp_path: Path) -> None:
    out = python(
        """
        sglang_cpu_shim.activate()
        import triton
        import triton.language as tl
        from triton.runtime.jit import JITFunction

        @triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=4)], key=["n"])
        @triton.jit
        def add(x, n, BLOCK: tl.constexpr):
            return tl.load(x)

        @triton.jit(do_not_specialize=["n"])
        def sub(x, n): ...

        print(add.__name__, sub.__name__, triton.cdiv(7, 2), triton.next_power_of_2(5), tl.constexpr(3).value)
        launches = (lambda: add[(1,)](None, 1), lambda: sub(None, 1), lambda: tl.load(0), JITFunction)
        for launch in launches:
            try:
                launch()
            except NotImplementedError:
                print("refused")
        """,
        tmp_path,
        SGLANG_USE_CPU_ENGINE="1",
    ).splitlines()
    assert out == ["add sub 4 8 3", *["refused"] * 4]


def test_hooks_into_kernel_loading_are_missing_on_purpose(tmp_path: Path) -> None:
    out = python(
        """
        sglang_cpu_shim.activate()
        import triton
        print(hasattr(triton, "knobs"))
        try:
            import triton.knobs
        except ImportError:
            print("absent")
        """,
        tmp_path,
        SGLANG_USE_CPU_ENGINE="1",
    )
    assert out.split() == ["False", "absent"]


@pytest.mark.parametrize("name", ["sgl_kernel", "triton"])
def test_the_real_package_wins(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("REAL = True\n")
    out = python(
        f"""
        sglang_cpu_shim.activate()
        import {name}
        print({name}.REAL)
        try:
            import {name}.not_there
        except ImportError:
            print("missing stays missing")
        """,
        tmp_path,
        SGLANG_USE_CPU_ENGINE="1",
    )
    assert out.splitlines() == ["True", "missing stays missing"]


def test_a_gpu_switches_the_stand_ins_off_unless_the_cpu_engine_is_asked_for(tmp_path: Path) -> None:
    code = f"""
        sglang_cpu_shim.NVIDIA_DEVICE = {os.fspath(tmp_path)!r}  # exists: as if a GPU were here
        print(sglang_cpu_shim.activate())
        try:
            import sgl_kernel
            print("stand-in")
        except ImportError:
            print("absent")
        """
    assert python(code, tmp_path, SGLANG_USE_CPU_ENGINE="0").split() == ["False", "absent"]
    assert python(code, tmp_path, SGLANG_USE_CPU_ENGINE="1").split() == ["True", "stand-in"]


def test_no_gpu_is_enough(tmp_path: Path) -> None:
    code = """
        sglang_cpu_shim.NVIDIA_DEVICE = "/nonexistent/device"
        print(sglang_cpu_shim.activate(), sglang_cpu_shim.activate())
        import sys
        print(sum(type(finder).__module__ == "sglang_cpu_shim.finders" for finder in sys.meta_path))
        """
    assert python(code, tmp_path, SGLANG_USE_CPU_ENGINE="").split() == ["True", "True", "2"]


def test_start_of_an_interpreter_stays_light(tmp_path: Path) -> None:
    out = python(
        """
        sglang_cpu_shim.activate()
        import sys
        print(sorted({"torch", "ctypes", "inspect", "typing"} & set(sys.modules)))
        """,
        tmp_path,
        SGLANG_USE_CPU_ENGINE="1",
    )
    assert out == "[]"


def test_real_sglang_imports_with_the_installed_stand_ins() -> None:
    code = """
        import importlib.util
        import sglang.srt.entrypoints.http_server
        import sgl_kernel, torch, torchvision
        assert sgl_kernel.__spec__.origin == "sglang_cpu_shim", sgl_kernel.__spec__
        boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
        try:
            torchvision.ops.nms(boxes, torch.tensor([1.0]), 0.5)
        except (NotImplementedError, RuntimeError) as error:
            print("no kernel")
        """
    if _gpu_build():
        pytest.skip("this environment has a CUDA build of torch: no stand-ins")
    env = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=240, check=False, env=env,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
    assert "no kernel" in found.stdout


def _gpu_build() -> bool:
    torch = pytest.importorskip("torch")
    return torch.version.cuda is not None
