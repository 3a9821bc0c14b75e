"""The replay client against a real HTTP server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from replay_server import Behaviour, Server, serving

from prism.replay import ClientSettings, PromptMaker, ReplaySettings, replay, write_outcomes
from prism.replay.runner import Progress, due_rows
from prism.report import RequestOutcome
from prism.traces import TraceRequest


def row(arrival_s: float = 0.0, model: str = "m", prompt: int = 5, output: int = 3) -> TraceRequest:
    return TraceRequest(arrival_s, model, prompt, output)


def run(
    behaviour: Behaviour,
    rows: list[TraceRequest],
    *,
    timeout_s: float = 30.0,
    ignore_eos: bool = True,
    **settings: float,
) -> tuple[Server, list[RequestOutcome]]:
    async def inner() -> tuple[Server, list[RequestOutcome]]:
        async with serving(behaviour) as (server, url):
            plan = ReplaySettings(ClientSettings(url, timeout_s, ignore_eos), **settings)  # type: ignore[arg-type]
            return server, await replay(rows, plan, {})

    return asyncio.run(inner())


def test_a_slow_server_delays_no_later_arrival() -> None:
    # no answer leaves before all twenty requests have come: a closed loop would wait for the first for ever
    rows = [row(0.01 * number) for number in range(20)]
    server, outcomes = run(Behaviour(hold_for=20), rows)
    assert len(server.bodies) == 20
    assert [outcome.status for outcome in outcomes] == ["ok"] * 20
    last_due_s = rows[-1].arrival_s
    assert all(
        outcome.first_token_s is not None and outcome.first_token_s >= last_due_s for outcome in outcomes
    )


def test_the_body_asks_for_the_trace_s_lengths() -> None:
    server, _ = run(Behaviour(), [row(prompt=40, output=9)])
    body = server.bodies[0]
    assert body["model"] == "m"
    assert body["max_tokens"] == 9
    assert body["ignore_eos"] is True
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert len(body["prompt"].split()) == 40


def test_ttft_is_the_first_text_that_is_not_empty_and_usage_counts_tokens() -> None:
    _, [outcome] = run(Behaviour(texts=("", "", "x")), [row()])
    assert outcome.status == "ok"
    assert outcome.first_token_s is not None
    assert outcome.ttft_s is not None
    assert outcome.end_s is not None
    assert 0 < outcome.ttft_s <= outcome.end_s
    assert (outcome.prompt_tokens, outcome.output_tokens) == (7, 3)


def test_no_text_at_all_is_an_answer_without_a_first_token() -> None:
    _, [outcome] = run(Behaviour(texts=("", "")), [row()])
    assert outcome.status == "ok"
    assert outcome.first_token_s is None


def test_without_usage_the_pieces_are_counted() -> None:
    _, [outcome] = run(Behaviour(texts=("a", "b", "", "c", "d"), usage=None), [row()], ignore_eos=False)
    assert (outcome.status, outcome.output_tokens) == ("ok", 4)


@pytest.mark.parametrize("reason", ["abort", "error", "content_filter", ""])
def test_an_answer_that_did_not_end_by_itself_has_failed(reason: str) -> None:
    _, [outcome] = run(Behaviour(reason=reason), [row()])
    assert outcome.status == "failed"
    assert f"finish_reason {reason!r}" in (outcome.error or "")


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_answer_that_ended_by_itself_is_ok(reason: str) -> None:
    _, [outcome] = run(Behaviour(reason=reason), [row(output=3)])
    assert (outcome.status, outcome.error) == ("ok", None)


@pytest.mark.parametrize("asked", [2, 4])
def test_an_answer_of_another_length_than_asked_has_failed(asked: int) -> None:
    _, [outcome] = run(Behaviour(), [row(output=asked)])
    assert outcome.status == "failed"
    assert f"asked for exactly {asked} tokens" in (outcome.error or "")
    assert "usage says 3" in (outcome.error or "")


def test_an_answer_whose_length_nobody_tells_has_failed() -> None:
    _, [outcome] = run(Behaviour(usage=None), [row()])
    assert outcome.status == "failed"
    assert "no usage" in (outcome.error or "")


def test_a_model_may_stop_early_where_eos_counts() -> None:
    server, [outcome] = run(Behaviour(reason="stop"), [row(output=9)], ignore_eos=False)
    assert "ignore_eos" not in server.bodies[0]
    assert (outcome.status, outcome.output_tokens) == ("ok", 3)


@pytest.mark.parametrize(
    ("status", "expected"), [(429, "refused"), (503, "refused"), (400, "failed"), (500, "failed")]
)
def test_http_errors(status: int, expected: str) -> None:
    _, [outcome] = run(Behaviour(status=status), [row()])
    assert outcome.status == expected
    assert outcome.error is not None
    assert f"HTTP {status}" in outcome.error
    assert "the reason" in outcome.error


def test_a_stream_that_breaks_off_has_failed() -> None:
    _, [outcome] = run(Behaviour(finish=False), [row()])
    assert outcome.status == "failed"
    assert "ended before" in (outcome.error or "")


def test_an_error_inside_the_stream_has_failed() -> None:
    _, [outcome] = run(Behaviour(error="engine died"), [row()])
    assert outcome.status == "failed"
    assert "engine died" in (outcome.error or "")


def test_nobody_there_has_failed() -> None:
    async def inner() -> list[RequestOutcome]:
        async with serving(Behaviour()) as (_, url):
            pass  # the port is free again
        return await replay([row()], ReplaySettings(ClientSettings(url)), {})

    [outcome] = asyncio.run(inner())
    assert outcome.status == "failed"


def test_a_request_s_own_limit() -> None:
    _, [outcome] = run(Behaviour(hang=True), [row()], timeout_s=0.2)
    assert outcome.status == "timeout"
    assert "0.2 s" in (outcome.error or "")


def test_the_end_of_the_replay_gives_up_what_still_runs_and_sends_nothing_later() -> None:
    rows = [row(0.0), row(0.1), row(500.0)]
    server, outcomes = run(Behaviour(hang=True), rows, max_s=0.6)
    assert len(server.bodies) == 2
    assert [outcome.status for outcome in outcomes] == ["timeout", "timeout"]
    assert [outcome.arrival_s for outcome in outcomes] == [0.0, 0.1]


def test_progress_is_reported_to_the_end() -> None:
    seen: list[Progress] = []

    async def inner() -> None:
        async with serving(Behaviour(status=500)) as (_, url):
            await replay([row(), row()], ReplaySettings(ClientSettings(url)), {}, seen.append)

    asyncio.run(inner())
    assert (seen[-1].total, seen[-1].sent, seen[-1].ended, seen[-1].not_ok) == (2, 2, 2, 2)


def test_time_scale_and_its_limits() -> None:
    rows = [row(0.0), row(10.0), row(20.0)]
    assert [due_s for due_s, _ in due_rows(rows, 0.5, 6.0)] == [0.0, 5.0]
    with pytest.raises(ValueError, match="time_scale is 0"):
        due_rows(rows, 0.0, 1.0)
    with pytest.raises(ValueError, match="max_s is -1"):
        due_rows(rows, 1.0, -1.0)


def test_the_api_key_is_sent() -> None:
    async def inner() -> Server:
        async with serving(Behaviour()) as (server, url):
            await replay([row()], ReplaySettings(ClientSettings(url, api_key="k")), {})
            return server

    assert asyncio.run(inner()).headers[0]["Authorization"] == "Bearer k"


def test_outcomes_are_one_json_object_a_line(tmp_path: Path) -> None:
    _, outcomes = run(Behaviour(), [row(), row(0.01)])
    write_outcomes(tmp_path / "outcomes.jsonl", outcomes)
    lines = [json.loads(line) for line in (tmp_path / "outcomes.jsonl").read_text().splitlines()]
    assert [line["request_id"] for line in lines] == ["replay-0", "replay-1"]
    assert all(line["status"] == "ok" and line["ttft_s"] > 0 for line in lines)


def test_prompts_have_the_asked_length_and_share_no_long_beginning() -> None:
    maker = PromptMaker(seed=1)
    prompts = [maker.prompt(200) for _ in range(20)]
    assert all(len(prompt.split()) == 200 for prompt in prompts)
    beginnings = {tuple(prompt.split()[:4]) for prompt in prompts}
    assert len(beginnings) == 20
    assert max(prompt.split().count(prompt.split()[0]) for prompt in prompts) < 20
    assert PromptMaker(seed=1).prompt(50) == PromptMaker(seed=1).prompt(50)
    assert PromptMaker(seed=1).prompt(50) != PromptMaker(seed=2).prompt(50)
    assert len(maker.prompt(1).split()) == 1
