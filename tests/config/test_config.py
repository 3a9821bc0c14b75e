"""The configuration file: defaults, example, schema, and what a refusal says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from prism.cli.main import app
from prism.config import Config, ConfigError, load_config, parse_config
from prism.config.schema import json_schema
from prism.config.sizes import format_size, parse_size

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
MINIMAL: dict[str, Any] = {"models": [{"name": "m", "path": "/models/m"}]}


def refusal(document: object) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(document)
    return str(caught.value)


def keys(value: object) -> object:
    """The structure of a document without its values."""
    if isinstance(value, dict):
        return {key: keys(item) for key, item in value.items()}
    return [keys(item) for item in value] if isinstance(value, list) else None


def test_example_states_every_key_with_its_default() -> None:
    document = yaml.safe_load((DEPLOY / "config.example.yaml").read_text())
    model = document["models"][0]
    minimal = parse_config({"models": [{"name": model["name"], "path": model["path"]}]})
    assert parse_config(document) == minimal
    assert keys(document) == keys(minimal.model_dump(mode="json"))


def test_committed_schema_is_the_current_one() -> None:
    assert json.loads((DEPLOY / "config.schema.json").read_text()) == json_schema()


def test_schema_accepts_the_example_and_refuses_an_unknown_key() -> None:
    document = yaml.safe_load((DEPLOY / "config.example.yaml").read_text())
    validator = jsonschema.Draft202012Validator(json_schema())
    validator.validate(document)
    document["server"]["prot"] = 1
    assert not validator.is_valid(document)


def test_dump_can_be_read_again() -> None:
    config = parse_config({**MINIMAL, "devices": [{"kv_budget_bytes": "1.5GiB"}]})
    assert parse_config(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("256MiB", 256 * 2**20),
        (4096, 4096),
        ("1.5 GiB", 3 * 2**29),
        ("64KB", 64000),
        ("12", 12),
        ("0.5kib", 512),
    ],
)
def test_sizes(text: str | int, nbytes: int) -> None:
    assert parse_size(text) == nbytes
    assert parse_size(format_size(nbytes)) == nbytes


@pytest.mark.parametrize("text", ["", "MiB", "-1MiB", "1 parsec", "0.3B", "1e6", True, None, 1.5])
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(ValueError, match=r"size|whole number"):
        parse_size(text)


@pytest.mark.parametrize(
    ("document", "needles"),
    [
        (
            {**MINIMAL, "server": {"prot": 1}},
            ["server.prot", "unknown key", "did you mean `port`", "max_body_bytes"],
        ),
        ({**MINIMAL, "sever": {}}, ["sever", "did you mean `server`"]),
        ({**MINIMAL, "server": {"port": "80"}}, ["server.port", "'80'", "integer"]),
        ({**MINIMAL, "server": {"port": 70000}}, ["server.port", "70000", "65535"]),
        (
            {**MINIMAL, "devices": [{"kv_budget_bytes": "12 parsecs"}]},
            ["devices[0].kv_budget_bytes", "256MiB"],
        ),
        ({**MINIMAL, "devices": []}, ["devices", "at least 1"]),
        ({"models": [{"name": "m"}]}, ["models[0].path", "missing"]),
        ({"models": []}, ["models", "at least 1"]),
        ({}, ["models", "missing"]),
        ({"models": [{"name": "a:b", "path": "/x"}]}, ["models[0].name", "'a:b'"]),
        ({"models": [{"name": "x" * 48, "path": "/x"}]}, ["models[0].name", "48 bytes", "at most 47"]),
        (
            {"models": [{"name": "m", "path": "/x", "slo": {"ttft_s": 0}}]},
            ["models[0].slo.ttft_s", "greater than 0"],
        ),
        (
            {"models": [{"name": "m", "path": "/x", "slo": {"ttft_s": float("nan")}}]},
            ["models[0].slo.ttft_s"],
        ),
        ({"models": [{"name": "m", "path": "/x", "device": "gpu7"}]}, ["models[0].device", "gpu7", "host0"]),
        ({"models": [{"name": "m", "path": "/x"}] * 2}, ["models[1].name", "used twice"]),
        (
            {"models": [{"name": "m", "path": "/x", "kv": {"floor_bytes": "2MiB", "limit_bytes": "1MiB"}}]},
            ["models[0].kv.floor_bytes", "2097152", "1048576"],
        ),
        (
            {"models": [{"name": "m", "path": "/x", "engine": {"args": ["--port=3"]}}]},
            ["models[0].engine.args[0]", "set by prism"],
        ),
        (
            {"models": [{"name": "m", "path": "/x", "engine": {"env": {"KVCACHED_NAME": "x"}}}]},
            ["models[0].engine.env.KVCACHED_NAME", "set by prism"],
        ),
        ([1], ["expected keys such as `models:`"]),
        (None, ["nothing"]),
    ],
)
def test_refusals_name_path_value_and_remedy(document: object, needles: list[str]) -> None:
    message = refusal(document)
    for needle in needles:
        assert needle in message


def test_every_problem_is_listed_at_once() -> None:
    message = refusal({"server": {"port": -1, "hots": "x"}, "models": [{"path": "/x"}]})
    assert all(path in message for path in ("server.port", "server.hots", "models[0].name"))


def test_key_written_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("models:\n  - {name: a, path: /x}\nserver: {port: 1}\nserver: {port: 2}\n")
    with pytest.raises(ConfigError, match="'server' is written twice"):
        load_config(file)


@pytest.mark.parametrize("text", ["a: [", "\x00", "? {a: b}\n: c", "!!python/object:os.system {}"])
def test_what_is_no_yaml(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        load_config(file)


def test_relative_paths_are_taken_from_the_files_folder(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("models:\n  - {name: a, path: m/a}\n  - {name: b, path: /abs/b}\nruntime_dir: run\n")
    config = load_config(file)
    assert [model.path for model in config.models] == [str(tmp_path / "m/a"), "/abs/b"]
    assert config.runtime_dir == str(tmp_path / "run")


def test_configuration_is_frozen() -> None:
    config: Config = parse_config(MINIMAL)
    with pytest.raises(ValueError, match="frozen"):
        config.runtime_dir = "/x"  # type: ignore[misc]


def test_validate_command_exit_codes(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("models:\n  - {name: a, path: /nowhere}\n")
    result = CliRunner().invoke(app, ["config", "validate", str(file)])
    assert result.exit_code == 0
    assert "/nowhere" in result.output  # said, though it is no error: the others would serve
    file.write_text("models:\n  - {name: a, pth: /nowhere}\n")
    result = CliRunner().invoke(app, ["config", "validate", str(file)])
    assert result.exit_code == 2
    assert "did you mean `path`" in result.output
    assert CliRunner().invoke(app, ["config", "validate", str(tmp_path / "none.yaml")]).exit_code == 2
