"""The running service with two real SGLang engines over one KV budget: what clients and operators see."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from prism.live.proc_table import family_of
from tests.live.prism_process import PrismProcess, wait_for

LONG = {"model": "llama", "prompt": "hello world", "max_tokens": 3500, "stream": True, "ignore_eos": True}


def client_of(served: PrismProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0, timeout=120)


@pytest.mark.parametrize("model", ["llama", "qwen3"])
def test_openai_client_chats(served: PrismProcess, model: str) -> None:
    with client_of(served) as client:
        messages: Any = [{"role": "user", "content": "the quick brown fox"}]
        whole = client.chat.completions.create(model=model, messages=messages, max_tokens=12, temperature=0)
        assert whole.usage is not None
        assert whole.usage.completion_tokens >= 1
        stream = client.chat.completions.create(
            model=model, messages=messages, max_tokens=12, temperature=0, stream=True
        )
        parts = [chunk.choices[0].delta.content or "" for chunk in stream]
        assert len(parts) > 1
        assert "".join(parts) == whole.choices[0].message.content


def test_stream_shows_usage_only_when_asked(served: PrismProcess) -> None:
    body: dict[str, Any] = {
        "model": "llama",
        "prompt": "fox",
        "max_tokens": 5,
        "stream": True,
        "ignore_eos": True,
    }
    status, text = served.request("/v1/completions", json.dumps(body).encode())
    assert status == 200
    events = [json.loads(line[5:]) for line in text.split("\n\n") if line and "[DONE]" not in line]
    assert all(event["choices"] for event in events)
    assert text.endswith("data: [DONE]\n\n")
    body["stream_options"] = {"include_usage": True}
    _, text = served.request("/v1/completions", json.dumps(body).encode())
    events = [json.loads(line[5:]) for line in text.split("\n\n") if line and "[DONE]" not in line]
    assert events[-1]["usage"]["completion_tokens"] == 5


def test_many_at_once_over_both_models(served: PrismProcess) -> None:
    def one(number: int) -> int:
        model = ("llama", "qwen3")[number % 2]
        body = {"model": model, "prompt": f"fox number {number} " * 20, "max_tokens": 20, "ignore_eos": True}
        status, document = served.post("/v1/completions", body)
        assert status == 200, document
        return int(document["usage"]["completion_tokens"])

    with ThreadPoolExecutor(40) as pool:
        assert list(pool.map(one, range(80))) == [20] * 80
    assert served.model("llama")["waiting"] == served.model("llama")["running"] == 0


def test_models_and_status_report_the_missing_one(served: PrismProcess) -> None:
    status, text = served.get("/v1/models")
    assert status == 200
    by_name = {model["id"]: model for model in json.loads(text)["data"]}
    assert set(by_name) == {"llama", "qwen3", "missing"}
    assert by_name["missing"]["status"]["phase"] == "failed"
    assert "/nowhere/model" in by_name["missing"]["status"]["detail"]
    assert by_name["llama"]["status"]["phase"] == "ready"
    assert by_name["llama"]["max_model_len"] == 4096
    for command in (["status"], ["models"]):
        arguments = [sys.executable, "-m", "prism.cli.main", *command, "--url", served.url]
        shown = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True).stdout
        assert "missing" in shown
        assert "failed" in shown
        as_json = subprocess.run(
            [*arguments, "--json"], capture_output=True, text=True, timeout=60, check=True
        )
        assert "/nowhere/model" in as_json.stdout
    assert json.loads(served.get("/v1/models/llama")[1])["id"] == "llama"
    assert served.get("/v1/models/nope")[0] == 404


def test_prefill_of_an_unstreamed_request_is_noticed(served: PrismProcess) -> None:
    """Else it would fill the device's prefill window until its end."""
    body = {**LONG, "prompt": "a fresh prompt " * 40, "max_tokens": 1500, "stream": False}
    status, _ = served.post("/v1/completions", body)
    assert status == 200
    events = [
        json.loads(line)["event"] for line in (served.folder / "events.jsonl").read_text().splitlines()[1:]
    ]
    request_id = [event["request_id"] for event in events if event["type"] == "Arrived"][-1]
    kinds = [event["type"] for event in events if event.get("request_id") == request_id]
    assert kinds == ["Arrived", "Dispatched", "PrefillProgress", "Finished"]


def test_kv_memory_moves_and_is_seen_from_outside(served: PrismProcess) -> None:
    floor = served.model("llama")["kv"]["floor_bytes"]
    assert 0 < floor < 8 * 2**20
    body = {"model": "llama", "prompt": "every good boy " * 250, "max_tokens": 600, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(served.post, "/v1/completions", body)
        wait_for(lambda: served.model("llama")["kv"]["used_bytes"] >= 2**20, "KV use is seen", 60)
        status, document = answer.result()
    assert status == 200
    assert document["usage"]["total_tokens"] * 512 > 2**20  # what it needed: 512 bytes a token


@pytest.mark.parametrize(
    ("body", "status", "param", "needle"),
    [
        (b'{"model": "llama", "prompt": "a"', 400, None, "not valid JSON"),
        (b"[]", 400, None, "JSON object"),
        ({"prompt": "a"}, 400, "model", "`model` is missing"),
        ({"model": "llama"}, 400, "prompt", "`prompt` is missing"),
        ({"model": "llama", "prompt": []}, 400, "prompt", "`prompt`"),
        ({"model": "llama", "prompt": "a", "max_tokens": 0}, 400, "max_tokens", "`max_tokens`"),
        ({"model": "llama", "prompt": "a", "temperature": "hot"}, 400, "temperature", "`temperature`"),
        # each of the next three would end the engine
        ({"model": "llama", "prompt": [1_000_000]}, 400, "prompt", "0 to 511"),
        ({"model": "llama", "prompt": "a", "top_k": 10**12}, 400, "top_k", "1 to 512"),
        ({"model": "llama", "prompt": "a", "logprobs": 10**9}, 400, "logprobs", "`logprobs`"),
        (b'{"model": "llama", "prompt": "a\\ud800"}', 400, "prompt", "UTF-8"),
        ({"model": "nope", "prompt": "a"}, 404, "model", "'nope'"),
        ({"model": "missing", "prompt": "a"}, 503, None, "/nowhere/model"),
        ({"model": "llama", "prompt": "a" * 2**20}, 413, None, "max_body_bytes"),
        (
            {"model": "llama", "prompt": "a", "logit_bias": "x"},
            400,
            None,
            "logit_bias",
        ),  # the engine's own word
    ],
)
def test_bad_input_gets_a_clear_answer(
    served: PrismProcess, body: object, status: int, param: str | None, needle: str
) -> None:
    got, document = served.post("/v1/completions", body)
    assert got == status
    assert set(document["error"]) == {"message", "type", "param", "code"}
    assert document["error"]["param"] == param
    assert needle in document["error"]["message"]


def test_bad_chat_messages_name_the_field(served: PrismProcess) -> None:
    got, document = served.post("/v1/chat/completions", {"model": "llama", "messages": [{"content": "x"}]})
    assert got == 400
    assert document["error"]["param"] == "messages[0].role"
    with client_of(served) as client, pytest.raises(openai.NotFoundError, match="nope"):
        client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_that_never_fits_is_refused_with_the_engines_message(
    served: PrismProcess, stream: bool
) -> None:
    body = {"model": "llama", "prompt": "zq " * 6000, "max_tokens": 5, "stream": stream}
    status, document = served.post("/v1/completions", body)
    assert status == 400
    assert "longer than the model's context length (4096 tokens)" in document["error"]["message"]


def test_client_that_leaves_frees_its_engine(served: PrismProcess) -> None:
    request = urllib.request.Request(
        served.url + "/v1/completions", json.dumps(LONG).encode(), {"content-type": "application/json"}
    )
    response = urllib.request.urlopen(request, timeout=60)
    assert response.readline().startswith(b"data:")  # at once: not held back until the end
    assert served.model("llama")["running"] == 1
    response.close()
    wait_for(lambda: served.model("llama")["running"] == 0, "the request is gone", 30)
    wait_for(lambda: 'outcome="cancelled"' in served.get("/metrics")[1], "counted as cancelled", 30)


def test_routes_of_the_service(served: PrismProcess) -> None:
    assert served.get("/health")[0] == 200
    assert served.get("/ready") == (200, "ready\n")
    metrics = served.get("/metrics")[1]
    assert 'prism_model_phase{model="missing",phase="failed"} 1.0' in metrics
    assert 'prism_kv_budget_bytes{device="host0"} 8.388608e+06' in metrics
    status, text = served.get("/v1/nope")
    assert status == 404
    assert json.loads(text)["error"]["code"] == "unknown_route"
    assert served.get("/v1/completions")[0] == 405


def test_prompts_are_never_written_down(served: PrismProcess) -> None:
    secret = "xyzzy-secret-prompt"
    assert served.post("/v1/completions", {"model": "llama", "prompt": secret, "max_tokens": 2})[0] == 200
    for path in (served.log_path, served.folder / "events.jsonl"):
        assert secret not in path.read_text()
        assert path == served.log_path or path.stat().st_mode & 0o777 == 0o600


def test_engines_have_private_folders_and_sessions(served: PrismProcess) -> None:
    assert served.runtime_dir.stat().st_mode & 0o777 == 0o700
    pids, files = served.guests()
    assert len(pids) >= 2 * 4  # keeper, server, scheduler, detokenizer
    assert files
    sessions = {os.getsid(pid) for pid in pids}
    assert len(sessions) == 2
    assert os.getsid(served.process.pid) not in sessions


def test_second_prism_is_turned_away(served: PrismProcess) -> None:
    config = served.folder / "config.yaml"
    arguments = [sys.executable, "-m", "prism.cli.main", "serve", "-c", str(config)]
    second = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert "used by another prism" in second.stderr
    assert served.get("/ready")[0] == 200


def test_engine_crash_ends_its_requests_and_spares_the_others(served: PrismProcess) -> None:
    """Killed under load: streams get an error event, others 502, the other model serves, it comes back."""
    results: dict[str, tuple[int, str]] = {}

    def send(name: str, stream: bool) -> None:
        body = json.dumps({**LONG, "model": "qwen3", "stream": stream}).encode()
        results[name] = served.request("/v1/completions", body)

    threads = [threading.Thread(target=send, args=(str(stream), stream)) for stream in (True, False)]
    for thread in threads:
        thread.start()
    wait_for(lambda: served.model("qwen3")["running"] == 2, "two requests run", 30)
    time.sleep(0.2)
    keeper = served.model("qwen3")["pid"]
    for info in family_of(keeper):
        os.kill(info.pid, signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    status, text = results["True"]
    assert status == 200
    assert '"code": "engine_lost"' in text
    assert text.endswith("data: [DONE]\n\n")
    assert results["False"][0] == 502
    assert json.loads(results["False"][1])["error"]["code"] == "engine_lost"
    wait_for(lambda: served.model("qwen3")["phase"] != "ready", "the crash is noticed", 30)
    assert served.post("/v1/completions", {"model": "llama", "prompt": "a", "max_tokens": 3})[0] == 200
    wait_for(lambda: served.model("qwen3")["phase"] == "ready", "the engine is started again")
    assert served.model("qwen3")["starts"] == 2
    assert served.post("/v1/completions", {"model": "qwen3", "prompt": "a", "max_tokens": 3})[0] == 200


def test_event_log_replays_to_the_same_commands(served: PrismProcess, tmp_path: Path) -> None:
    """Last: everything the tests above made happen, fed to fresh schedulers."""
    from prism.sim.eventlog import replay

    copy = tmp_path / "events.jsonl"
    lines = (served.folder / "events.jsonl").read_text().splitlines()
    copy.write_text("\n".join(lines) + "\n")
    events = [json.loads(line)["event"] for line in lines[1:]]
    kinds = {event["type"] for event in events}
    assert {
        "Arrived",
        "Dispatched",
        "FirstToken",
        "Finished",
        "Cancelled",
        "EngineState",
        "ModelState",
    } <= kinds
    replayed = replay(copy)
    assert replayed.events == len(events)
    assert replayed.commands > 100


def test_every_request_and_command_has_one_ending(served: PrismProcess) -> None:
    wait_for(lambda: json.loads(served.get("/status")[1])["requests"] == 0, "all requests ended", 60)
    lines = (served.folder / "events.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines[1:]]
    events = [record["event"] for record in records]
    endings: dict[str, int] = {e["request_id"]: 0 for e in events if e["type"] == "Arrived"}
    for event in events:
        ends = event["type"] in ("Cancelled", "Expired") or (event["type"] == "Refused" and event["final"])
        if ends or (event["type"] == "Finished" and event["op_id"] is None):
            endings[event["request_id"]] += 1
    assert set(endings.values()) == {1}
    commands = [
        c["op_id"] for r in records for c in r["commands"] if c["type"] in ("Dispatch", "Abort", "Refuse")
    ]
    ended = [e["op_id"] for e in events if e["type"] in ("Dispatched", "Refused", "Finished") and e["op_id"]]
    assert sorted(commands) == sorted(ended)
