"""What one request, one full disk or one deaf client must not do to the rest of the service."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from prism.config import parse_config
from prism.config.budget import plan_models
from prism.core import LocalScheduler
from prism.core.commands import Command
from prism.core.config import LocalConfig, LocalModel
from prism.core.events import ModelState, Woke
from prism.core.mailbox import local_name
from prism.live import app as app_module
from prism.live import exchange as exchange_module
from prism.live.api_request import ApiRequest, Route, parse_request
from prism.live.app import make_app
from prism.live.body import read_body
from prism.live.clock import Clock
from prism.live.connection import DroppableConnection
from prism.live.decider import Decider
from prism.live.event_log import EventLog
from prism.live.exchange import ExchangeContext, ExchangeResponse
from prism.live.live_request import LiveRequest, RequestTable
from prism.live.metrics import Metrics
from prism.live.openai_errors import ApiError
from prism.live.request_limits import check_vocabulary
from prism.live.runtime_dir import open_runtime_dir
from prism.live.service import Service
from prism.live.upstream import Ending, Forwarding, Upstream

CHAT: Route = "/v1/chat/completions"
TEXT: Route = "/v1/completions"
ROUTES: dict[Route, dict[str, Any]] = {
    TEXT: {"model": "m", "prompt": "a"},
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "a"}]},
}
VOCABULARY = 512
FULL_DISK = Path("/dev/full")


def judge(route: Route, fields: dict[str, Any]) -> ApiRequest:
    """Everything that is asked of a request before it may reach an engine."""
    api = parse_request(route, json.dumps({**ROUTES[route], **fields}).encode())
    check_vocabulary(api, VOCABULARY)
    return api


# -- values the engine does not survive ---------------------------------------------------------------------

DEADLY: list[tuple[Route, dict[str, Any], str]] = [
    (TEXT, {"prompt": [VOCABULARY]}, "prompt"),
    (TEXT, {"prompt": [1_000_000]}, "prompt"),
    (TEXT, {"prompt": [[1], [2, VOCABULARY, 3]]}, "prompt"),
    (TEXT, {"prompt": [-1]}, "prompt"),
    (TEXT, {"logprobs": 21}, "logprobs"),
    (TEXT, {"logprobs": 1_000_000_000}, "logprobs"),
    (TEXT, {"logprobs": "1000000000"}, "logprobs"),  # the engine would read it as a number
    (TEXT, {"logprobs": -1}, "logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    (CHAT, {"logprobs": 10**9}, "logprobs"),
    (CHAT, {"input_ids": [VOCABULARY]}, "input_ids"),
    (CHAT, {"input_ids": [3, -1]}, "input_ids[1]"),
    *[
        (route, fields, name)
        for route in ROUTES
        for fields, name in (
            ({"top_k": 10**12}, "top_k"),
            ({"top_k": VOCABULARY + 1}, "top_k"),
            ({"top_k": 0}, "top_k"),
            ({"top_k": -2}, "top_k"),
            ({"n": 0}, "n"),
            ({"n": 17}, "n"),
            ({"min_tokens": 2**31, "max_tokens": 2**32}, "min_tokens"),
            ({"stop_token_ids": [VOCABULARY], "min_tokens": 1}, "stop_token_ids"),
            ({"stop_token_ids": [-1], "min_tokens": 1}, "stop_token_ids[0]"),
        )
    ],
]


@pytest.mark.parametrize(("route", "fields", "name"), DEADLY)
def test_values_that_would_end_the_engine_are_refused(
    route: Route, fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(ApiError) as caught:
        judge(route, fields)
    assert (caught.value.status, caught.value.param) == (400, name)
    assert f"`{name}`" in caught.value.message


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        (TEXT, {"prompt": [0, VOCABULARY - 1], "logprobs": 0}),
        (TEXT, {"logprobs": 20, "n": 16}),
        (TEXT, {"top_k": -1, "stop_token_ids": []}),
        (CHAT, {"top_k": VOCABULARY, "logprobs": True, "top_logprobs": 20}),
        (CHAT, {"top_k": 1, "logprobs": False, "top_logprobs": 0, "n": 1}),
        (CHAT, {"top_k": None, "n": None, "stop_token_ids": None, "input_ids": None, "top_logprobs": None}),
    ],
)
def test_the_bounds_themselves_pass(route: Route, fields: dict[str, Any]) -> None:
    assert json.loads(judge(route, fields).engine_body()).items() >= fields.items()


def test_input_ids_stand_in_for_the_messages() -> None:
    api = judge(CHAT, {"input_ids": [5] * 9})
    assert (api.texts, api.messages, api.token_ids) == ((), 0, 9)


# -- texts that are none ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "field", "name"),
    [
        (TEXT, '"prompt": "a\\ud800"', "prompt"),
        (TEXT, '"prompt": ["a", "\\udfff"]', "prompt[1]"),
        (TEXT, '"stop": ["\\ud800"]', "stop[0]"),
        (TEXT, '"logit_bias": {"\\ud800": 1}', "logit_bias"),
        (CHAT, '"messages": [{"role": "user", "content": "\\ud800"}]', "messages[0].content"),
        (
            CHAT,
            '"messages": [{"role": "user", "content": [{"type": "text", "text": "\\ud800"}]}]',
            "messages[0].content[0].text",
        ),
    ],
)
def test_text_without_utf8_form_names_its_field(route: Route, field: str, name: str) -> None:
    base = json.dumps({**ROUTES[route]}).removesuffix("}")
    with pytest.raises(ApiError, match="UTF-8") as caught:
        parse_request(route, f"{base}, {field}}}".encode())
    assert (caught.value.status, caught.value.param) == (400, name)


def test_raw_surrogate_bytes_and_whole_pairs() -> None:
    with pytest.raises(ApiError, match="UTF-8"):
        parse_request(TEXT, b'{"model": "m", "prompt": "\xed\xa0\x80"}')
    assert parse_request(TEXT, b'{"model": "m", "prompt": "\\ud83d\\ude00"}').texts == ("\U0001f600",)


# -- the app ------------------------------------------------------------------------------------------------


@pytest.fixture
def on_service(tiny_models: Path, short_dir: Path) -> Callable[[Callable[[Service], Awaitable[None]]], None]:
    """Runs a check against a service that was made but not started: no engine is needed to refuse."""

    def run(check: Callable[[Service], Awaitable[None]]) -> None:
        model = {"name": "m", "path": str(tiny_models / "tiny-llama"), "engine": {"max_total_tokens": 8192}}
        config = parse_config({"devices": [{"kv_budget_bytes": "8MiB"}], "models": [model]})
        runtime = open_runtime_dir(str(short_dir / "run"), None)

        async def main() -> None:
            service = Service(config, plan_models(config), runtime)
            try:
                instance = service.fleet.get("m")
                assert instance is not None
                instance.device = config.devices[0]  # as if it had been placed
                await check(service)
            finally:
                await service.close(asyncio.Event())

        try:
            asyncio.run(main())
        finally:
            runtime.close()

    return run


def test_admission_uses_the_vocabulary_of_the_model(
    on_service: Callable[[Callable[[Service], Awaitable[None]]], None],
) -> None:
    async def check(service: Service) -> None:
        fine = parse_request(TEXT, b'{"model": "m", "prompt": [511]}')
        assert (await service.admit(fine)).prompt_tokens == 1
        with pytest.raises(ApiError, match="0 to 511"):
            await service.admit(parse_request(TEXT, b'{"model": "m", "prompt": [512]}'))

    on_service(check)


def test_bugs_are_answered_in_shape_and_logged_by_type(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_service: object) -> None:
        raise KeyError("xyzzy-secret-prompt")

    monkeypatch.setattr(app_module, "models_document", broken)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(cast("Service", None), ()), raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://prism") as client:
            return await client.get("/v1/models")

    with caplog.at_level(logging.DEBUG):
        response = asyncio.run(ask())
    assert response.status_code == 500
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.json()["error"]["code"] == "internal_error"
    assert "KeyError" in caplog.text
    assert "xyzzy" not in caplog.text + response.text
    assert "Traceback" not in caplog.text + response.text


# -- a full disk --------------------------------------------------------------------------------------------


def test_event_log_on_a_full_disk_warns_once_and_stops(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog(FULL_DISK, {})
    for number in range(3):
        log.write(float(number), "global", Woke("t"), [])
    log.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left" in caplog.text
    log.write(9.0, "global", Woke("t"), [])  # a late event, after the service closed


class _HalfFull:
    """A disk that takes a part of one more line; stands in for a real one, which needs a mount."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left = 10  # bytes

    def write(self, data: bytes) -> int:
        taken = min(len(data), self._left)
        if not taken:
            raise OSError(28, "No space left on device")
        self._left -= taken
        return int(self._file.write(data[:taken]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_event_log_keeps_whole_lines_when_the_disk_fills_up(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EventLog(path, {})
    log.write(0.0, "global", Woke("t"), [])
    whole = path.read_bytes()
    log._file = _HalfFull(log._file)  # type: ignore[assignment]
    log.write(1.0, "global", Woke("t"), [])
    log.close()
    assert path.read_bytes() == whole
    assert whole.endswith(b"\n")


# -- exchanges ----------------------------------------------------------------------------------------------

LOCAL = LocalConfig(device="d", models=(LocalModel("m", 1000),))
NAME = local_name("d")


def context_of(
    *, log: EventLog | None, upstream: object, timeout_s: float
) -> tuple[ExchangeContext, RequestTable]:
    """Real scheduler and door; commands go straight to the one request that is held."""
    clock = Clock()
    table = RequestTable(10)
    decider = Decider({NAME: LocalScheduler(LOCAL)}, clock, log)

    def execute(_scheduler: str, command: Command) -> None:
        request = table.get(getattr(command, "request_id", ""))
        if request is not None:
            request.decisions.put_nowait(cast("Any", command))

    decider.connect(execute)
    decider.feed(NAME, ModelState("m", "m", "d", "ready", None, ""))
    context = ExchangeContext(
        decider=decider,
        table=table,
        upstream=cast("Upstream", upstream),
        clock=clock,
        metrics=Metrics(),
        timeout_s=timeout_s,
        url_of=lambda _instance: None,
        failure_of=lambda _model: "",
    )
    return context, table


def live(context: ExchangeContext) -> LiveRequest:
    now_s = context.clock.now_s()
    return LiveRequest("r1", "d", judge(TEXT, {}), 10, 10, now_s, now_s + 2)


async def silent_client() -> Message:
    await asyncio.sleep(100)
    return {"type": "http.disconnect"}


class _Answering:
    """An engine that answers at once."""

    async def forward(self, forwarding: Forwarding) -> Any:
        forwarding.sent()
        await forwarding.client.answer(200, b"{}")
        return Ending("stop")


def test_requests_are_served_and_forgotten_on_a_full_disk() -> None:
    async def main() -> None:
        context, table = context_of(log=EventLog(FULL_DISK, {}), upstream=_Answering(), timeout_s=10.0)
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        await ExchangeResponse(context, live(context))({"type": "http"}, silent_client, send)
        assert [message.get("status") for message in sent] == [200, None]
        assert len(table) == 0

    asyncio.run(main())


def test_request_leaves_the_table_though_its_ending_fails() -> None:
    async def main() -> None:
        context, table = context_of(log=None, upstream=_Answering(), timeout_s=10.0)

        def broken(_scheduler: str, _event: object) -> None:
            raise RuntimeError("no decisions any more")

        context.decider.feed = broken  # type: ignore[assignment,method-assign]

        async def send(_message: Message) -> None:
            return None

        with pytest.raises(RuntimeError, match="no decisions"):
            await ExchangeResponse(context, live(context))({"type": "http"}, silent_client, send)
        assert len(table) == 0

    asyncio.run(main())


class _Flooding:
    """An engine that streams without end."""

    async def forward(self, forwarding: Forwarding) -> Any:
        forwarding.sent()
        await forwarding.client.start_stream()
        while True:
            await forwarding.client.chunk(b"x" * 2**16)


def test_client_that_never_reads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a real connection: its request ends at the time limit, its socket and its buffers go, too."""
    monkeypatch.setattr(exchange_module, "_ANSWER_S", 0.2)

    async def main() -> None:
        context, table = context_of(log=None, upstream=_Flooding(), timeout_s=0.5)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()  # the body, as the real app reads it
            await ExchangeResponse(context, live(context))(scope, receive, send)

        settings = uvicorn.Config(
            app, http=DroppableConnection, lifespan="off", log_config=None, port=0, loop="none"
        )
        server = uvicorn.Server(settings)
        listener = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            async with asyncio.timeout(30):
                while not len(table):  # noqa: ASYNC110 (neither this nor the next tells by an event)
                    await asyncio.sleep(0.01)
                while len(table) or server.server_state.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            server.should_exit = True
            async with asyncio.timeout(30):
                await serving

    asyncio.run(main())


@pytest.mark.parametrize("chunked", [False, True])
def test_client_that_sends_too_much_gets_the_answer_all_the_same(chunked: bool) -> None:
    """Most clients read only once they have sent everything; a reset connection would tell them nothing."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await read_body(Request(scope, receive), 1000)
        except ApiError as error:
            await Response(error.body(), error.status)(scope, receive, send)

    part = b"x" * 2**20
    head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    if chunked:
        frame = b"%x\r\n%s\r\n" % (len(part), part)
        data = head + b"transfer-encoding: chunked\r\n\r\n" + frame * 16 + b"0\r\n\r\n"
    else:
        data = head + b"content-length: %d\r\n\r\n" % (16 * len(part)) + part * 16

    def talk(address: Any) -> bytes:
        with socket.create_connection(address, timeout=30) as client:
            client.sendall(data)
            return b"".join(iter(lambda: client.recv(2**16), b""))

    async def main() -> bytes:
        settings = uvicorn.Config(app, http=DroppableConnection, lifespan="off", log_config=None, loop="none")
        server = uvicorn.Server(settings)
        listener = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        answer = await asyncio.to_thread(talk, listener.getsockname())
        server.should_exit = True
        await serving
        return answer

    answer = asyncio.run(main())
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"server.max_body_bytes" in answer


def test_table_tells_who_waits_for_a_request_or_for_none() -> None:
    async def main() -> None:
        context, table = context_of(log=None, upstream=_Answering(), timeout_s=1.0)
        filled = asyncio.create_task(table.wait_filled())
        await asyncio.sleep(0)
        assert not filled.done()
        table.add(live(context))
        await filled
        await table.wait_filled()
        empty = asyncio.create_task(table.wait_empty())
        await asyncio.sleep(0)
        assert not empty.done()
        table.remove("r1")
        await empty
        filled = asyncio.create_task(table.wait_filled())
        await asyncio.sleep(0)
        assert not filled.done()
        filled.cancel()

    asyncio.run(main())
