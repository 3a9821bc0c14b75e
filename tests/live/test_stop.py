"""Signals and sudden death, with real engines, at the worst moments. Nothing may stay."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from prism.live.proc_table import all_processes
from tests.live.prism_process import PrismProcess, alive, assert_nothing_left, wait_for

KEY = "a-long-enough-key"
PROMPT = {"model": "llama", "prompt": "hello world", "max_tokens": 4}


def document_of(models: Path, **server: Any) -> dict[str, Any]:
    return {
        "server": {"port": 0, **server},
        "devices": [{"kv_budget_bytes": "8MiB"}],
        "models": [
            {"name": "llama", "path": str(models / "tiny-llama"), "engine": {"max_total_tokens": 8192}}
        ],
        "runtime_dir": "run",
    }


def wait_engine_loading(prism: PrismProcess) -> None:
    """Until the engine has spawned its scheduler and detokenizer and is still far from ready."""
    wait_for(lambda: len(prism.guests()[0]) >= 5, "the engine's processes are there", 120)
    assert prism.model("llama")["phase"] == "loading"


def test_while_starting(tiny_models: Path, short_dir: Path) -> None:
    """Requests are held, bounded, timed; keys are asked for; a signal ends the start."""
    keys = short_dir / "keys"
    keys.write_text(f"# ours\n{KEY}\n")
    keys.chmod(0o600)
    document = document_of(
        tiny_models, max_queued_requests=1, request_timeout_s=3.0, api_key_file=str(keys), drain_s=0.0
    )
    with PrismProcess(short_dir, document) as prism:
        assert prism.get("/health")[0] == 200
        assert prism.get("/ready") == (503, "no model is ready yet\n")
        data = json.dumps(PROMPT).encode()
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {KEY}"}):
            assert prism.request("/v1/completions", data, headers=headers)[0] == 401
            assert prism.request("/v1/models", None, headers=headers)[0] == 401
        key = {"authorization": f"Bearer {KEY}"}
        models = json.loads(prism.request("/v1/models", None, headers=key)[1])["data"]
        assert models[0]["status"]["phase"] == "loading"
        answers: list[tuple[int, str]] = []
        thread = threading.Thread(
            target=lambda: answers.append(prism.request("/v1/completions", data, headers=key))
        )
        thread.start()
        wait_for(
            lambda: json.loads(prism.request("/status", None, headers=key)[1])["requests"] == 1, "held", 30
        )
        status, text = prism.request("/v1/completions", data, headers=key)
        assert status == 429
        assert json.loads(text)["error"]["code"] == "queue_full"
        thread.join(60)
        assert answers[0][0] == 504
        assert json.loads(answers[0][1])["error"]["code"] == "request_timeout"
        with pytest.raises(TimeoutError):  # a client that leaves while its request is held
            prism.request("/v1/completions", data, timeout_s=0.5, headers=key)
        wait_for(lambda: 'outcome="cancelled"} 1.0' in prism.get("/metrics")[1], "counted as cancelled", 30)
        assert KEY not in prism.log
        wait_for(lambda: len(prism.guests()[0]) >= 3, "the engine is being started", 120)
        pids, files = prism.guests()
        prism.process.send_signal(signal.SIGTERM)
        assert prism.process.wait(60) == 0
    assert_nothing_left(pids, files)
    assert not (short_dir / "run").exists()


@pytest.mark.parametrize("keepers_too", [False, True])
def test_kill_9_while_loading_and_next_start(
    tiny_models: Path, short_dir: Path, *, keepers_too: bool
) -> None:
    """SGLang's own parent-death signal misses children that are still importing; ours must not."""
    with PrismProcess(short_dir, document_of(tiny_models)) as prism:
        wait_engine_loading(prism)
        pids, files = prism.guests()
        keepers = {pid for pid in pids if os.getsid(pid) == pid}
        assert len(keepers) == 1
        if keepers_too:
            for pid in keepers:
                os.kill(pid, signal.SIGSTOP)  # so that it cannot clean up
        prism.process.kill()
        prism.process.wait()
        if keepers_too:
            for pid in keepers:
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not any(alive(pid) for pid in keepers), "keeper gone", 30)
        else:
            assert_nothing_left(pids, files)
    (short_dir / "prism.log").unlink()
    with PrismProcess(short_dir, document_of(tiny_models)) as prism:
        assert prism.url  # the folder of the killed one is taken over
        assert_nothing_left(pids, files)
        assert ("cleaned up after a killed prism" in prism.log) == keepers_too
        wait_for(lambda: len(prism.guests()[0]) >= 2, "the engine is being started", 120)
        more_pids, more_files = prism.guests()
        prism.process.send_signal(signal.SIGINT)
        prism.process.send_signal(signal.SIGTERM)
        assert prism.process.wait(60) == 0
    assert_nothing_left(more_pids, more_files)
    assert not list((short_dir / "run").iterdir())  # the folder itself was there before the second prism


def stream_to_end(prism: PrismProcess, answers: list[tuple[int, str]]) -> threading.Thread:
    body = {**PROMPT, "max_tokens": 1200, "stream": True, "ignore_eos": True}
    thread = threading.Thread(
        target=lambda: answers.append(prism.request("/v1/completions", json.dumps(body).encode()))
    )
    thread.start()
    wait_for(lambda: prism.model("llama")["running"] == 1, "the stream runs", 30)
    return thread


def test_first_signal_drains(tiny_models: Path, short_dir: Path) -> None:
    """And, beside it: an engine whose plugin was never loaded answers, but is not routed to."""
    document = document_of(tiny_models, drain_s=120.0)
    stock = {"max_total_tokens": 8192, "env": {"SGLANG_PLUGINS": "none"}}
    document["models"].append({"name": "stock", "path": str(tiny_models / "tiny-qwen3"), "engine": stock})
    with PrismProcess(short_dir, document) as prism:
        prism.wait_phase("llama", "ready")
        prism.wait_phase("stock", "failed")
        assert "runs without kvcached" in prism.model("stock")["detail"]
        status, answer = prism.post("/v1/completions", {**PROMPT, "model": "stock"})
        assert status == 503
        assert "kvctl doctor" in answer["error"]["message"]
        answers: list[tuple[int, str]] = []
        thread = stream_to_end(prism, answers)
        pids, files = prism.guests()
        assert files
        prism.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "draining" in prism.log, "draining", 30)
        status, document = prism.post("/v1/completions", PROMPT)
        assert (status, document["error"]["code"]) == (503, "stopping")
        assert prism.get("/ready")[0] == 503
        thread.join(120)
        assert answers[0][1].endswith("data: [DONE]\n\n")
        assert '"finish_reason":"length"' in answers[0][1]
        assert prism.process.wait(60) == 0
    assert_nothing_left(pids, files)
    assert not (short_dir / "run").exists()


def test_second_signal_ends_even_stuck_engines(tiny_models: Path, short_dir: Path) -> None:
    with PrismProcess(short_dir, document_of(tiny_models, drain_s=120.0)) as prism:
        prism.wait_phase("llama", "ready")
        answers: list[tuple[int, str]] = []
        thread = stream_to_end(prism, answers)
        pids, files = prism.guests()
        processes = all_processes()
        for pid in pids:
            if pid in processes and processes[pid].session_id != pid:
                os.kill(pid, signal.SIGSTOP)  # neither streams on nor hears TERM
        prism.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "draining" in prism.log, "draining", 30)
        prism.process.send_signal(signal.SIGTERM)
        assert prism.process.wait(60) == 0
        thread.join(60)
        assert '"code": "stopping"' in answers[0][1]
    assert_nothing_left(pids, files)
    assert not (short_dir / "run").exists()
