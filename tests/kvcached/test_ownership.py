"""Whose ``kvcached`` is it? Real wheels, installed by pip into fresh environments, in both orders."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PEER_FILES = {
    "kvcached/__init__.py": "raise SystemExit('the other kvcached was imported')\n",
    "kvcached/utils.py": "x = 1\n",
    "kvcached/cli/__init__.py": "",
    "kvcached/cli/kvctl.py": "def main():\n    print('their kvctl')\n",
    "kvcached/cli/kvtop.py": "def main():\n    print('their kvtop')\n",
}
FIND = (
    "import kvcached_sglang_plugin as p, sys; print(p.find_conflict()); assert 'kvcached' not in sys.modules"
)
ACTIVATE = "import kvcached_sglang_plugin as p; p.activate(); print('went on')"


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Environment:
    """A fresh virtual environment without pip; packages come from local wheel files only."""

    python: Path
    cwd: Path

    @property
    def site(self) -> Path:
        (site,) = self.python.parents[1].glob("lib/python3*/site-packages")
        return site

    def pip(self, *arguments: str) -> None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.python),
            "--disable-pip-version-check",
            *arguments,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def install(self, wheel: Path, *options: str) -> None:
        self.pip("install", "--no-deps", "--no-index", "--quiet", *options, str(wheel))

    def run(self, code: str, environment: dict[str, str] | None = None) -> Outcome:
        done = subprocess.run(
            [self.python, "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=self.cwd,
            env={"PATH": os.environ["PATH"], **(environment or {})},
        )
        return Outcome(done.returncode, done.stdout.strip(), done.stderr.strip())

    def conflict(self, **environment: str) -> str:
        """What find_conflict says, as text; it must not have imported the package in question."""
        outcome = self.run(FIND, environment)
        assert outcome.code == 0, outcome.err
        return outcome.out


@pytest.fixture(scope="session")
def our_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel from this tree, without the compiled module: ownership is about recorded files."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
    ]
    command += [
        "--disable-pip-version-check",
        "--config-settings=wheel.cmake=false",
        "-w",
        str(folder),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("prism_kvcached-*.whl")
    return wheel


@pytest.fixture(scope="session")
def peer_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with the name, package and scripts of the other project."""
    info = "kvcached-0.1.6.dist-info"
    files = PEER_FILES | {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: kvcached\nVersion: 0.1.6\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": (
            "[console_scripts]\nkvctl = kvcached.cli.kvctl:main\nkvtop = kvcached.cli.kvtop:main\n"
        ),
    }
    record = "".join(f"{path},sha256={sha256(text)},{len(text)}\n" for path, text in files.items())
    wheel = tmp_path_factory.mktemp("peer") / "kvcached-0.1.6-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in (files | {f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}).items():
            archive.writestr(path, text)
    return wheel


def sha256(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=120)
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    return Environment(venv / "bin" / "python", cwd)


def must_stop(environment: Environment, *words: str) -> None:
    """Activation ends the process with the reason and a remedy, without going on and without a traceback."""
    outcome = environment.run(ACTIVATE, {"KVCACHED_ENABLE": "1"})
    assert outcome.code == 1
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    for word in ("SGLang is stopped", "reason:", "remedy:", *words):
        assert word in outcome.err, outcome.err
    script = environment.run("import kvcached_sglang_plugin as p; p.kvctl()")
    assert script.code == 1
    assert "remedy:" in script.err
    off = environment.run(ACTIVATE)
    assert (off.code, off.out) == (0, "went on")


def test_alone_it_is_ours(environment: Environment, our_wheel: Path) -> None:
    environment.install(our_wheel)
    assert environment.conflict() == "None"


def test_the_peer_installed_last(environment: Environment, our_wheel: Path, peer_wheel: Path) -> None:
    environment.install(our_wheel)
    environment.install(peer_wheel)
    must_stop(environment, "kvcached 0.1.6", "prism-kvcached", "pip uninstall -y kvcached")
    environment.pip("uninstall", "-y", "kvcached")
    must_stop(environment, "kvcached/__init__.py", "missing", "--force-reinstall")
    environment.install(our_wheel, "--force-reinstall")
    assert environment.conflict() == "None"


def test_ours_installed_last(environment: Environment, our_wheel: Path, peer_wheel: Path) -> None:
    environment.install(peer_wheel)
    environment.install(our_wheel)
    must_stop(environment, "kvcached 0.1.6", "prism-kvcached", "pip uninstall -y kvcached")
    environment.pip("uninstall", "-y", "kvcached")
    must_stop(environment, "kvcached/__init__.py", "missing", "--force-reinstall")
    environment.install(our_wheel, "--force-reinstall")
    assert environment.conflict() == "None"


def test_files_overwritten_without_metadata(environment: Environment, our_wheel: Path) -> None:
    environment.install(our_wheel)
    (environment.site / "kvcached" / "__init__.py").write_text(PEER_FILES["kvcached/__init__.py"])
    must_stop(environment, "is not the file that", "overwritten")


def test_a_peer_elsewhere_on_the_path_matters_only_if_it_is_imported(
    environment: Environment, our_wheel: Path, peer_wheel: Path, tmp_path: Path
) -> None:
    environment.install(our_wheel)
    elsewhere = tmp_path / "elsewhere"
    with zipfile.ZipFile(peer_wheel) as archive:
        archive.extractall(elsewhere)
    first = environment.conflict(PYTHONPATH=str(elsewhere))
    assert f"takes {elsewhere}" in first
    assert "belongs to kvcached 0.1.6" in first
    (environment.site / "later.pth").write_text(f"{elsewhere}\n")
    assert environment.conflict() == "None"


def test_a_folder_of_that_name_in_the_working_directory(environment: Environment, our_wheel: Path) -> None:
    environment.install(our_wheel)
    (environment.cwd / "kvcached").mkdir()
    (environment.cwd / "kvcached" / "__init__.py").touch()
    assert "start from another folder" in environment.conflict()


@pytest.mark.parametrize("peer", [False, True])
def test_an_editable_install(
    environment: Environment, peer_wheel: Path, tmp_path: Path, *, peer: bool
) -> None:
    tree = tmp_path / "tree with space"
    (tree / "kvcached").mkdir(parents=True)
    (tree / "kvcached" / "__init__.py").touch()
    (tree / "kvcached_sglang_plugin.py").write_bytes((ROOT / "kvcached_sglang_plugin.py").read_bytes())
    info = environment.site / "prism_kvcached-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: prism-kvcached\nVersion: 0.1.0\n")
    (info / "RECORD").write_text("prism_kvcached-0.1.0.dist-info/METADATA,,\neditable.pth,,\n")
    (info / "direct_url.json").write_text(json.dumps({"url": tree.as_uri(), "dir_info": {"editable": True}}))
    (environment.site / "editable.pth").write_text(f"{tree}\n")
    if peer:
        environment.install(peer_wheel)
        must_stop(environment, "kvcached 0.1.6")
        return
    assert environment.conflict() == "None"
    (tree / "kvcached" / "__init__.py").unlink()
    assert "no regular package" in environment.conflict()


def test_a_source_tree_without_any_installation(environment: Environment, peer_wheel: Path) -> None:
    assert environment.conflict(PYTHONPATH=str(ROOT)) == "None"
    environment.install(peer_wheel)
    assert environment.conflict(PYTHONPATH=str(ROOT)) == "None"
    copy = environment.cwd / "kvcached_sglang_plugin.py"
    copy.write_bytes((ROOT / copy.name).read_bytes())
    assert "belongs to kvcached 0.1.6" in environment.conflict()


def test_any_failure_of_activation_stops_the_process(environment: Environment, our_wheel: Path) -> None:
    environment.install(our_wheel)
    outcome = environment.run(ACTIVATE, {"KVCACHED_ENABLE": "1"})  # there is no SGLang in this environment
    assert outcome.code == 1
    assert outcome.out == ""
    assert "could not be activated: ModuleNotFoundError" in outcome.err
    assert "remedy:" in outcome.err


@pytest.mark.parametrize("value", ["true", "2", "on", "01"])
def test_an_unclear_switch_stops_the_process(environment: Environment, value: str) -> None:
    outcome = environment.run(ACTIVATE, {"PYTHONPATH": str(ROOT), "KVCACHED_ENABLE": value})
    assert outcome.code == 1
    assert f"KVCACHED_ENABLE={value!r}" in outcome.err


@pytest.mark.parametrize("value", ["", "0"])
def test_switched_off_it_does_nothing(environment: Environment, value: str) -> None:
    code = f"import sys; {ACTIVATE}; print('kvcached' in sys.modules)"
    outcome = environment.run(code, {"PYTHONPATH": str(ROOT), "KVCACHED_ENABLE": value})
    assert (outcome.code, outcome.out.split("\n")) == (0, ["went on", "False"])
