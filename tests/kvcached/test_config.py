from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from pathlib import Path

import pytest

from kvcached import cli
from kvcached import config as config_module
from kvcached.config import (
    Config,
    default_host_budget_bytes,
    default_ledger_path,
    ledger_dir,
    parse_size_bytes,
)
from kvcached.errors import ConfigError
from kvcached.ledgers import open_ledger
from kvcached.proc import mem_available_bytes


def test_empty_environment_gives_the_defaults() -> None:
    assert Config.from_env({}) == Config()
    assert Config.from_env({"KVCACHED_NAME": "", "HOME": "/x"}) == Config()


def test_every_setting_is_read() -> None:
    config = Config.from_env(
        {
            "KVCACHED_ENABLE": "1",
            "KVCACHED_LEDGER": "/run/x/host0.ledger",
            "KVCACHED_BUDGET_BYTES": "1GiB",
            "KVCACHED_NAME": "chat",
            "KVCACHED_FLOOR_BYTES": "16MiB",
            "KVCACHED_LIMIT_BYTES": " 512 MiB ",
            "KVCACHED_PRIORITY": "-5",
            "KVCACHED_WARM_BYTES": "0",
            "KVCACHED_PAGE_BYTES": "64KiB",
            "KVCACHED_PAGE_POLICY": "most_filled",
            "KVCACHED_HOST_STRICT": "1",
            "KVCACHED_LIBCUDA": "/opt/libcuda.so.1",
        }
    )
    assert config == Config(
        enabled=True,
        ledger_path="/run/x/host0.ledger",
        budget_bytes=1 << 30,
        name="chat",
        floor_bytes=16 << 20,
        limit_bytes=512 << 20,
        priority=-5,
        warm_bytes=0,
        page_bytes=64 << 10,
        page_policy="most_filled",
        host_strict=True,
        libcuda="/opt/libcuda.so.1",
    )


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().enabled = True  # type: ignore[misc]


def test_the_table_in_the_docstring_is_complete() -> None:
    rows = set(re.findall(r"^\| (KVCACHED_\w+)", config_module.__doc__ or "", re.MULTILINE))
    assert len(rows) == len(dataclasses.fields(Config))
    for variable in rows:
        with pytest.raises(ConfigError, match=f"{variable}="):
            # each known variable has some value it refuses
            Config.from_env({variable: "\t\x01" if variable.endswith("NAME") else "no such value"})


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("256MiB", 256 << 20),
        ("1.5GiB", 3 << 29),
        ("2GB", 2 * 10**9),
        ("3 kib", 3072),
        ("7B", 7),
    ],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "MiB", "12Q", "-1", "1e9", "0.3KiB", "1,5GiB", "٣MiB"])
def test_impossible_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"MiB|whole number"):
        parse_size_bytes(text)


@pytest.mark.parametrize(
    ("variable", "value", "remedy"),
    [
        ("KVCACHED_ENABLE", "yes", "set 1"),
        ("KVCACHED_HOST_STRICT", "true", "set 1"),
        ("KVCACHED_BUDGET_BYTES", "lots", "256MiB"),
        ("KVCACHED_BUDGET_BYTES", "0", "set 1 bytes or more"),
        ("KVCACHED_LIMIT_BYTES", "9999999TiB", "out of range"),
        ("KVCACHED_PAGE_BYTES", "512", "set 4096 bytes or more"),
        ("KVCACHED_PAGE_POLICY", "first_fit", "set best_fit or most_filled"),
        ("KVCACHED_PRIORITY", "high", "integer"),
        ("KVCACHED_NAME", "n" * 48, "47"),
        ("KVCACHED_NAME", "a\nb", "printable"),
        ("KVCACHED_LEDGER", "host0.ledger", "absolute"),
    ],
)
def test_a_bad_value_names_variable_value_and_remedy(variable: str, value: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_env({variable: value})
    assert f"{variable}={value!r}" in str(caught.value)
    assert remedy in str(caught.value)


def test_an_unknown_variable_names_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"KVCACHED_BUGDET_BYTES.*KVCACHED_BUDGET_BYTES"):
        Config.from_env({"KVCACHED_BUGDET_BYTES": "1"})
    with pytest.raises(ConfigError, match=r"KVCACHED_XYZZY.*known are .*KVCACHED_ENABLE"):
        Config.from_env({"KVCACHED_XYZZY": "1"})


def test_a_floor_above_the_limit_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="KVCACHED_FLOOR_BYTES=2097152 is above KVCACHED_LIMIT_BYTES=1048576"
    ):
        Config.from_env({"KVCACHED_FLOOR_BYTES": "2MiB", "KVCACHED_LIMIT_BYTES": "1MiB"})


def test_default_ledger_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_ledger_path("host0") == f"{tmp_path}/kvcached/host0.ledger"
    sessions = tmp_path / "sessions"
    monkeypatch.setattr(config_module, "_SESSIONS", sessions)
    for runtime in (str(tmp_path / "gone"), ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        assert ledger_dir() == Path(tempfile.gettempdir()) / f"kvcached-{os.getuid()}"
    session = sessions / str(os.getuid())
    session.mkdir(parents=True)
    assert ledger_dir() == session / "kvcached"
    uid = os.getuid() + 1
    session.rename(sessions / str(uid))
    monkeypatch.setattr(os, "getuid", lambda: uid)
    assert ledger_dir().name == f"kvcached-{uid}", "a session folder of another user is none of ours"


def test_a_folder_that_another_user_took_first_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(config_module, "_SESSIONS", tmp_path / "none")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    uid = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: uid)
    ledger_dir().mkdir(mode=0o700)
    remedy = "set XDG_RUNTIME_DIR to a folder of your own with mode 0700, or KVCACHED_LEDGER"
    with pytest.raises(ConfigError, match=f"kvcached-{uid} is no folder of user {uid}.*{remedy}"):
        open_ledger(Config(), "cpu")
    for command in ("list", "clean", "doctor"):
        assert cli.main([command]) == 1
        shown = capsys.readouterr()
        assert remedy in shown.out + shown.err
    assert open_ledger(Config(ledger_path=str(tmp_path / "mine" / "host0.ledger")), "cpu").budget_bytes > 0


def test_default_budget_is_the_documented_share() -> None:
    assert 0 < default_host_budget_bytes() < mem_available_bytes()
