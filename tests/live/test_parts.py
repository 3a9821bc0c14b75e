"""The small parts: streams, requests, errors, launch lines, keys, the folder, the door to the decisions."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from prism.config import DeviceSettings, parse_config
from prism.core.codec import canonical
from prism.core.commands import Command, WakeAt
from prism.core.config import LocalConfig
from prism.core.events import Event, Woke
from prism.live.api_keys import ApiKeyError, load_api_keys
from prism.live.api_request import Route, parse_request
from prism.live.clock import Clock
from prism.live.decider import Decider
from prism.live.event_log import EventLog
from prism.live.launch import plan_launch
from prism.live.openai_errors import ApiError, from_engine
from prism.live.prompt_tokens import TEMPLATE_TOKENS_PER_MESSAGE, PromptCounter
from prism.live.runtime_dir import RuntimeDirError, default_runtime_dir, open_runtime_dir
from prism.live.sse import MAX_EVENT_BYTES, SseSplitter, StreamError, read_event

CHAT: Route = "/v1/chat/completions"
TEXT: Route = "/v1/completions"


def parse(route: Route, **fields: Any) -> Any:
    return parse_request(route, json.dumps(fields).encode())


# -- event streams ------------------------------------------------------------------------------------------


def test_events_are_cut_the_same_wherever_the_network_cuts() -> None:
    stream = b'data: {"choices": []}\n\n: keep-alive\n\ndata: [DONE]\n\n'
    whole = SseSplitter().push(stream)
    assert len(whole) == 3
    for step in (1, 2, 3, 7):
        splitter = SseSplitter()
        parts = [event for i in range(0, len(stream), step) for event in splitter.push(stream[i : i + step])]
        assert parts == whole


def test_endless_event_is_refused() -> None:
    with pytest.raises(StreamError, match="more than"):
        SseSplitter().push(b"data: " + b"x" * MAX_EVENT_BYTES)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (
            {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
            {"progress": True, "content": False},
        ),
        ({"choices": [{"delta": {"content": "a"}}]}, {"progress": True, "content": True}),
        ({"choices": [{"delta": {"reasoning_content": "a"}}]}, {"content": True}),
        ({"choices": [{"text": ""}]}, {"progress": True, "content": False}),
        (
            {"choices": [{"text": "a", "finish_reason": "length"}]},
            {"content": True, "finish_reason": "length"},
        ),
        ({"choices": [], "usage": {"completion_tokens": 7}}, {"usage_only": True, "completion_tokens": 7}),
        ({"error": {"message": "boom"}}, {"error": "boom"}),
        ({"error": "boom"}, {"error": "boom"}),
    ],
)
def test_what_an_event_says(payload: dict[str, Any], expected: dict[str, Any]) -> None:
    event = read_event(b"data: " + json.dumps(payload).encode() + b"\n\n")
    for name, value in expected.items():
        assert getattr(event, name) == value


@pytest.mark.parametrize("raw", [b"data: {\n\n", b"data: 3\n\n"])
def test_events_that_are_none(raw: bytes) -> None:
    with pytest.raises(StreamError):
        read_event(raw)


# -- requests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "texts", "token_ids"),
    [
        ("a", ("a",), 0),
        ([1, 2, 3], (), 3),
        (["a", "b"], ("a", "b"), 0),
        ([[1, 2], [3]], (), 3),
        (["a", [1, 2]], ("a",), 2),
    ],
)
def test_every_form_of_prompt(prompt: object, texts: tuple[str, ...], token_ids: int) -> None:
    request = parse(TEXT, model="m", prompt=prompt)
    assert (request.texts, request.token_ids, request.max_tokens) == (texts, token_ids, 16)


@pytest.mark.parametrize("prompt", [None, "", [], [[]], [""], [-1], [True], [1.5], {"a": 1}, 5, [["a"]]])
def test_what_is_no_prompt(prompt: object) -> None:
    with pytest.raises(ApiError) as caught:
        parse(TEXT, model="m", prompt=prompt)
    assert (caught.value.status, caught.value.param) == (400, "prompt")


def test_chat_texts_limits_and_unknown_fields() -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": "x"}}]
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": parts}]
    request = parse(CHAT, model="m", messages=messages, max_tokens=9, max_completion_tokens=5, top_k=3)
    assert request.texts == ("a", "b")
    assert request.max_tokens == 5
    assert json.loads(request.engine_body())["top_k"] == 3  # unknown here, known to the engine


def test_streams_always_end_with_usage_towards_the_engine() -> None:
    request = parse(TEXT, model="m", prompt="a", stream=True, stream_options={"chunk": 1})
    assert json.loads(request.engine_body())["stream_options"] == {"chunk": 1, "include_usage": True}
    assert not request.include_usage
    assert "stream_options" not in json.loads(parse(TEXT, model="m", prompt="a").engine_body())


def test_refusals_do_not_repeat_the_prompt() -> None:
    with pytest.raises(ApiError) as caught:
        parse(CHAT, model="m", messages=[{"role": "user", "content": {"secret": "xyzzy"}}])
    assert caught.value.param == "messages[0].content"
    assert "xyzzy" not in str(caught.value)


def test_deeply_nested_body_is_a_clear_error() -> None:
    with pytest.raises(ApiError, match="not valid JSON"):
        parse_request(TEXT, b"[" * 200_000)


# -- errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "expected_status", "message"),
    [
        (400, b'{"object":"error","message":"too long","param":null}', 400, "too long"),
        (400, b'{"error":{"message":"too long"}}', 400, "too long"),
        (422, b'{"message":"bad\\n\\n  File \\"/secret/path.py\\", line 3"}', 422, "bad"),
        (400, b"plain", 400, "plain"),
        (500, b'{"message":"boom"}', 502, "the engine answered 500: boom"),
        (503, b"", 502, "the engine answered 503: without a message"),
    ],
)
def test_engine_answers_as_ours(status: int, body: bytes, expected_status: int, message: str) -> None:
    error = from_engine(status, body)
    assert (error.status, error.message) == (expected_status, message)


@pytest.mark.parametrize(
    ("delay_s", "header"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.2, "2"), (30.0, "30")]
)
def test_retry_after_is_whole_seconds_and_never_too_early(delay_s: float, header: str) -> None:
    assert ApiError(429, "m", "c", None, delay_s).headers() == {"retry-after": header}


# -- launch ------------------------------------------------------------------------------------------


def test_launch_line_and_environment() -> None:
    model = parse_config(
        {
            "models": [
                {
                    "name": "m",
                    "path": "/models/m",
                    "kv": {"limit_bytes": "1GiB", "priority": 3},
                    "engine": {"context_length": 512, "args": ["--page-size", "1"], "env": {"MINE": "1"}},
                }
            ]
        }
    ).models[0]
    inherited = {"PATH": "/bin", "KVCACHED_NAME": "other", "SGLANG_PLUGINS": "none", "TMPDIR": "/tmp"}
    launch = plan_launch(
        model=model,
        device=DeviceSettings(),
        port=123,
        tmp_dir=Path("/run/t"),
        ledger_path=Path("/run/l"),
        floor_bytes=77,
        inherited=inherited,
    )
    line = " ".join(launch.command)
    for part in (
        "-m sglang.launch_server --model-path /models/m --served-model-name m --host 127.0.0.1 --port 123",
        "--device cpu --attention-backend torch_native --disable-overlap-schedule --max-total-tokens 16384",
        "--context-length 512",
        "--sleep-on-idle --enable-metrics --skip-server-warmup",
    ):
        assert part in line
    assert line.endswith("--page-size 1")
    environment = launch.environment
    assert environment["TMPDIR"] == "/run/t"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false"
    assert environment["MINE"] == "1"
    assert "SGLANG_PLUGINS" not in environment
    ours = {name: value for name, value in environment.items() if name.startswith("KVCACHED_")}
    assert ours == {
        "KVCACHED_ENABLE": "1",
        "KVCACHED_LEDGER": "/run/l",
        "KVCACHED_NAME": "m",
        "KVCACHED_FLOOR_BYTES": "77",
        "KVCACHED_PRIORITY": "3",
        "KVCACHED_LIMIT_BYTES": str(2**30),
    }


# -- keys, folder ------------------------------------------------------------------------------------------


def test_api_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    assert load_api_keys(None) == ()
    with pytest.raises(ApiKeyError, match="cannot be read"):
        load_api_keys(str(file))
    file.write_text("# c\n\nfirst-long-key\nsecond-long-key\n")
    file.chmod(0o644)
    with pytest.raises(ApiKeyError, match="chmod 600"):
        load_api_keys(str(file))
    file.chmod(0o600)
    assert load_api_keys(str(file)) == (b"first-long-key", b"second-long-key")
    file.write_text("short\n")
    with pytest.raises(ApiKeyError, match="fewer than 8") as caught:
        load_api_keys(str(file))
    assert "short\n" not in str(caught.value)
    file.write_text("# none\n")
    with pytest.raises(ApiKeyError, match="holds no key"):
        load_api_keys(str(file))


def test_runtime_dir_is_private_locked_and_removed(short_dir: Path) -> None:
    path = short_dir / "run"
    runtime = open_runtime_dir(str(path), None)
    assert path.stat().st_mode & 0o777 == 0o700
    folder = runtime.engine_dir(0)
    assert (folder / "tmp").stat().st_mode & 0o777 == 0o700
    with pytest.raises(RuntimeDirError, match="used by another prism"):
        open_runtime_dir(str(path), None)
    runtime.close()
    assert not path.exists()


def test_runtime_dirs_that_are_refused(short_dir: Path) -> None:
    path = short_dir / "open"
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    with pytest.raises(RuntimeDirError, match="chmod 700"):
        open_runtime_dir(str(path), None)
    (short_dir / "link").symlink_to(short_dir)
    with pytest.raises(RuntimeDirError, match="no folder"):
        open_runtime_dir(str(short_dir / "link"), None)
    with pytest.raises(RuntimeDirError, match="too long"):
        open_runtime_dir(str(short_dir / ("x" * 100)), None)


def test_other_peoples_files_in_the_runtime_dir_stay(short_dir: Path) -> None:
    path = short_dir / "run"
    path.mkdir(mode=0o700)
    (path / "mine").touch()
    open_runtime_dir(str(path), None).close()
    assert [file.name for file in path.iterdir()] == ["mine"]


def test_default_runtime_dir(tmp_path: Path) -> None:
    assert default_runtime_dir({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "prism"
    assert default_runtime_dir({}).name == f"prism-{os.getuid()}"


# -- prompts, decisions -------------------------------------------------------------------------------------


def test_prompt_tokens_with_and_without_a_tokenizer(tiny_models: Path, tmp_path: Path) -> None:
    text = "the quick brown fox jumps over the lazy dog"
    request = parse(CHAT, model="m", messages=[{"role": "user", "content": text}])
    estimated = asyncio.run(PromptCounter(tmp_path).count(request))
    assert estimated == -(-len(text) // 4) + TEMPLATE_TOKENS_PER_MESSAGE
    counted = asyncio.run(PromptCounter(tiny_models / "tiny-llama").count(request))
    many = parse(TEXT, model="m", prompt=(text + " ") * 500)  # long: off the event loop
    more = asyncio.run(PromptCounter(tiny_models / "tiny-llama").count(many))
    assert TEMPLATE_TOKENS_PER_MESSAGE < counted < more
    assert asyncio.run(PromptCounter(tmp_path).count(parse(TEXT, model="m", prompt=[5] * 9))) == 9


class Echo:
    """Answers a timer by the next one, three times."""

    def on_event(self, event: Event, now_s: float) -> list[Command]:
        assert isinstance(event, Woke)
        assert now_s >= 0
        number = int(event.timer_id)
        return [WakeAt(str(number + 1), now_s)] if number < 3 else []


def test_events_caused_by_commands_wait_their_turn(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EventLog(path, {"local:d": LocalConfig("d", ())})
    decider = Decider({"local:d": Echo()}, Clock(), log)
    depth, deepest = 0, 0

    def execute(scheduler: str, command: Command) -> None:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        assert isinstance(command, WakeAt)
        decider.feed(scheduler, Woke(command.timer_id))
        depth -= 1

    decider.connect(execute)
    decider.feed("local:d", Woke("0"))
    log.close()
    assert deepest == 1
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"]["timer_id"] for line in lines[1:]] == ["0", "1", "2", "3"]
    assert lines[0]["header"] == 1
    assert all(
        canonical(line) == text for line, text in zip(lines, path.read_text().splitlines(), strict=True)
    )


def test_event_log_stops_at_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EventLog(path, {}, max_bytes=200)
    for number in range(50):
        log.write(float(number), "global", Woke("t"), [])
    log.close()
    assert path.stat().st_size <= 200
    assert all(json.loads(line) for line in path.read_text().splitlines())
