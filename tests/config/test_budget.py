"""Floors: what a model folder says about KV memory, and budgets that cannot hold it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from prism.config import ConfigError, Problem, parse_config
from prism.config.budget import check_budgets, load_planned, plan_models
from prism.config.model_facts import ModelFolderError, plan_kv, read_model_facts
from prism.config.schema import EngineSettings

FACTS: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_size": 128,
    "max_position_embeddings": 4096,
    "vocab_size": 1000,
    "dtype": "bfloat16",
}


def folder(path: Path, **changes: object) -> Path:
    path.mkdir(exist_ok=True)
    facts = {key: value for key, value in {**FACTS, **changes}.items() if value is not None}
    (path / "config.json").write_text(json.dumps(facts))
    return path


def problems(document: dict[str, Any]) -> list[Problem]:
    config = parse_config(document)
    return check_budgets(config, plan_models(config))


@pytest.mark.parametrize(
    ("changes", "dtype", "row_bytes"),
    [
        ({}, "auto", 2 * 32 * 2),
        ({}, "float32", 2 * 32 * 4),
        ({"num_key_value_heads": None}, "auto", 4 * 32 * 2),  # plain multi-head attention
        ({"head_dim": None}, "auto", 2 * (128 // 4) * 2),
        ({"text_config": {"num_key_value_heads": 1}}, "auto", 1 * 32 * 2),  # multimodal: one level down
    ],
)
def test_row_bytes(tmp_path: Path, changes: dict[str, Any], dtype: str, row_bytes: int) -> None:
    engine = EngineSettings.model_validate({"dtype": dtype})
    facts = read_model_facts(folder(tmp_path / "m", **changes), engine)
    assert facts.row_bytes == row_bytes
    assert facts.kv_bytes_per_token == 2 * 2 * row_bytes


def test_floor_is_padding_and_one_longest_request_in_whole_pages(tmp_path: Path) -> None:
    engine = EngineSettings.model_validate({"max_total_tokens": 8192})
    plan = plan_kv(read_model_facts(folder(tmp_path / "m"), engine), engine, "host")
    rows_per_page = 64 * 1024 // 128  # a 64 KiB page of 128-byte rows
    pages = -(-(1 + 4096) // rows_per_page)
    assert plan.page_set_bytes == 4 * 64 * 1024
    assert plan.floor_bytes == pages * plan.page_set_bytes
    shorter = EngineSettings.model_validate({"max_total_tokens": 8192, "context_length": 511})
    plan = plan_kv(read_model_facts(folder(tmp_path / "m"), shorter), shorter, "host")
    assert plan.floor_bytes == plan.page_set_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no config.json"),
        ("[1]", "no JSON object"),
        ("{", "cannot be read as JSON"),
        (json.dumps({**FACTS, "num_hidden_layers": "two"}), "num_hidden_layers"),
        (json.dumps({**FACTS, "kv_lora_rank": 64}), "latent attention"),
    ],
)
def test_unusable_folders_say_why(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelFolderError, match=message):
        read_model_facts(tmp_path, EngineSettings())


def test_too_small_budget_names_the_smallest_that_works(tmp_path: Path) -> None:
    path = str(folder(tmp_path / "m"))
    document: dict[str, Any] = {
        "devices": [{"kv_budget_bytes": "1MiB"}],
        "models": [
            {"name": "a", "path": path},
            {"name": "b", "path": path},
            {"name": "c", "path": "/nowhere"},
        ],
    }
    (problem,) = problems(document)
    assert problem.path == "devices[0].kv_budget_bytes"
    assert "1048576" in problem.message
    smallest = re.search(r"smallest that works is (\d+)", problem.message)
    assert smallest is not None
    document["devices"][0]["kv_budget_bytes"] = int(smallest[1]) - 1
    assert problems(document)
    document["devices"][0]["kv_budget_bytes"] = int(smallest[1])
    assert not problems(document)


def test_limit_below_the_floor_is_refused(tmp_path: Path) -> None:
    path = str(folder(tmp_path / "m"))
    (problem,) = problems({"models": [{"name": "a", "path": path, "kv": {"limit_bytes": 4096}}]})
    assert problem.path == "models[0].kv.limit_bytes"
    assert "4096" in problem.message


def test_stock_engines_have_no_floor(tmp_path: Path) -> None:
    path = str(folder(tmp_path / "m"))
    document = {
        "devices": [{"kv_budget_bytes": 4096}],
        "models": [{"name": "a", "path": path, "engine": {"kvcached": False}}],
    }
    assert not problems(document)


def test_unplaced_models_must_fit_some_device(tmp_path: Path) -> None:
    path = str(folder(tmp_path / "m"))
    devices = [{"name": name, "kv_budget_bytes": "3MiB"} for name in ("h0", "h1")]
    models = [{"name": name, "path": path} for name in ("a", "b")]
    assert not problems({"devices": devices, "models": models})
    models.append({"name": "c", "path": path})
    (problem,) = problems({"devices": devices, "models": models})
    assert problem.path == "devices"
    wide = {"name": "d", "path": path, "kv": {"floor_bytes": "5MiB"}}
    (problem,) = problems({"devices": devices, "models": [wide]})
    assert problem.path == "models[0].kv.floor_bytes"


def test_load_planned_refuses_before_anything_is_started(tmp_path: Path) -> None:
    folder(tmp_path / "m")
    file = tmp_path / "c.yaml"
    file.write_text("devices:\n  - {kv_budget_bytes: 1KiB}\nmodels:\n  - {name: a, path: m}\n")
    with pytest.raises(ConfigError, match=r"devices\[0\].kv_budget_bytes"):
        load_planned(file)
