"""The whole path: tokens through prism and kvcached against stock SGLang without either.

Three models share the demo's budget, which is smaller than their static peaks. A token is compared by its
text and log-probability as the OpenAI completions route reports them.
"""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.correctness.answers import Answer, answer_from, parting_gap
from tests.correctness.conftest import model_folder, running
from tests.correctness.engine import Engine, EngineSpec
from tests.correctness.prompts import COUNT, Prompt, prompts_for
from tests.correctness.test_against_stock import CASES
from tests.live.prism_process import PrismProcess

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

MODELS = ("smollm2-135m", "random-qwen3", "random-olmo2")
NEAR_TIE = {case.model: case.near_tie for case in CASES if case.dtype is None}
ENGINE = {"max_total_tokens": 6144, "context_length": 1024, "max_running_requests": 16}
CONCURRENT = 16


def body_for(model: str, prompt: Prompt) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": list(prompt.input_ids),
        "max_tokens": prompt.max_new_tokens,
        "temperature": 0,
        "logprobs": 2,
    }


@pytest.fixture(scope="module")
def prism() -> Iterator[PrismProcess]:
    with tempfile.TemporaryDirectory(prefix="prism-t-") as name:
        document = {
            "server": {"port": 0},
            "devices": [{"kv_budget_bytes": "128MiB"}],
            "models": [{"name": m, "path": str(model_folder(m)), "engine": ENGINE} for m in MODELS],
            "runtime_dir": "run",
            "log_dir": "logs",
        }
        with PrismProcess(Path(name), document) as process:
            for model in MODELS:
                process.wait_phase(model, "ready")
            yield process


def ask(prism: PrismProcess, model: str, prompt: Prompt) -> Answer:
    status, document = prism.post("/v1/completions", body_for(model, prompt))
    assert status == 200, document
    return answer_from(document)


def stock_answers(engine: Engine, model: str, prompts: list[Prompt]) -> list[Answer]:
    return [answer_from(engine.post("/v1/completions", body_for(model, prompt))) for prompt in prompts]


@pytest.mark.parametrize("model", MODELS)
def test_tokens_are_those_of_stock_sglang(prism: PrismProcess, model: str) -> None:
    prompts = prompts_for(model_folder(model))
    assert len(prompts) == COUNT == 20
    with running(EngineSpec(model_folder(model), context_length=ENGINE["context_length"])) as (stock,):
        expected = stock_answers(stock, model, prompts)
    assert all(answer.tokens for answer in expected)

    assert [ask(prism, model, prompt).tokens for prompt in prompts] == [a.tokens for a in expected]

    with ThreadPoolExecutor(CONCURRENT) as threads:
        together = list(threads.map(lambda prompt: ask(prism, model, prompt), prompts))
    for reference, answer in zip(expected, together, strict=True):
        assert parting_gap(reference, answer) <= NEAR_TIE[model], (reference, answer)


@pytest.mark.parametrize("model", MODELS)
def test_the_openai_client_chats(prism: PrismProcess, model: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
    with openai.OpenAI(base_url=prism.url + "/v1", api_key="none", max_retries=0, timeout=120) as client:
        whole = client.chat.completions.create(model=model, messages=messages, max_tokens=12, temperature=0)
        stream = client.chat.completions.create(
            model=model, messages=messages, max_tokens=12, temperature=0, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 0
    assert "".join(pieces) == whole.choices[0].message.content
    if model == "smollm2-135m":
        assert "Paris" in "".join(pieces)
