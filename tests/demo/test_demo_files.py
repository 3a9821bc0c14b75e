"""What is committed for the demo fits together."""

from pathlib import Path

import pytest

from demo.make_trace import TRACE
from demo.movement import MemorySeries
from demo.picture import draw_memory
from demo.service import effective_config
from prism.config import load_config
from prism.config.budget import check_budgets, plan_models
from prism.traces import read_trace
from prism.traces.generator import generate
from tools.make_models import MAKERS, OLMO2_SHAPE, QWEN3_SHAPE, SMOLLM2_KV_BYTES_PER_TOKEN

DEMO = Path(__file__).resolve().parents[2] / "demo"
BF16_BYTES = 2


def test_the_committed_trace_is_what_our_generator_makes() -> None:
    assert read_trace(DEMO / "trace.csv") == generate(TRACE)


def test_the_trace_asks_only_for_configured_models_and_fits_their_context(tmp_path: Path) -> None:
    path, _ = effective_config(DEMO / "config.yaml", tmp_path, tmp_path)
    config = load_config(path)
    context = {model.name: model.engine.context_length for model in config.models}
    for request in read_trace(DEMO / "trace.csv"):
        limit = context[request.model]
        assert limit is not None
        assert request.prompt_tokens + request.output_tokens < limit


def test_the_budget_is_too_small_for_the_static_peaks(tmp_path: Path) -> None:
    path, _ = effective_config(DEMO / "config.yaml", tmp_path, tmp_path)
    config = load_config(path)
    static_bytes = sum(model.engine.max_total_tokens * SMOLLM2_KV_BYTES_PER_TOKEN for model in config.models)
    assert static_bytes > 3 * config.devices[0].kv_budget_bytes


def test_the_configuration_is_accepted(tmp_path: Path) -> None:
    path, _ = effective_config(DEMO / "config.yaml", tmp_path, tmp_path)
    config = load_config(path)
    missing = [model.path for model in config.models if not Path(model.path).is_dir()]
    if missing:
        pytest.skip(f"make models has not run: {missing[0]}")
    assert check_budgets(config, plan_models(config)) == []


def test_the_made_models_hold_as_much_kv_as_the_real_one() -> None:
    assert QWEN3_SHAPE.kv_bytes_per_token() == SMOLLM2_KV_BYTES_PER_TOKEN
    assert OLMO2_SHAPE.kv_bytes_per_token() == SMOLLM2_KV_BYTES_PER_TOKEN
    assert SMOLLM2_KV_BYTES_PER_TOKEN == 30 * 3 * 64 * 2 * BF16_BYTES
    assert len(MAKERS) == 3


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    series = MemorySeries((0.0, 1.0, 2.0), {"a": (0, 2**20, 0), "b": (2**20, 0, 2**20)})
    draw_memory(series, 2 * 2**20, tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
