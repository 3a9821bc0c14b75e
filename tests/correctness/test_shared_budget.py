"""Two real engines under one budget: bursts, waiting for memory, prompts that can never fit.

`first` has no floor: all it holds beyond its padding page it must get from the ledger. `second` has the
default floor, enough for one request of its full (here short) context.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvcached._core import ClientInfo, Ledger
from tests.correctness.conftest import model_folder, running
from tests.correctness.engine import Completion, Elastic, Engine, EngineSpec, RequestRefusedError
from tests.correctness.pool_process import PoolProcess
from tests.correctness.pressure import (
    IDLE_S,
    PATIENCE_S,
    PROMPT_TOKENS,
    budget_taken,
    in_background,
    prompt,
    until,
)
from tests.correctness.sampler import MemorySampler, peak_bytes

pytestmark = pytest.mark.engine

BYTES_PER_ROW = 23_040  # both models: layers x KV heads x head size x (K, V) x 2 bytes
BURST_REQUESTS = 12
NEW_TOKENS = 64
PEAK_BYTES = BURST_REQUESTS * (PROMPT_TOKENS + NEW_TOKENS) * BYTES_PER_ROW
BUDGET_BYTES = int(0.6 * 2 * PEAK_BYTES)
SECOND_CONTEXT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Shared:
    """The two engines, their ledger, and a third process that can take its budget."""

    first: Engine
    second: Engine
    holder: PoolProcess
    ledger: Path

    def client(self, name: str) -> ClientInfo:
        return next(one for one in Ledger(str(self.ledger)).snapshot().clients if one.name == name)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    ledger = tmp_path_factory.mktemp("ledger") / "host0.ledger"
    first = EngineSpec(
        model_folder("random-qwen3"), elastic=Elastic(ledger, BUDGET_BYTES, "first", floor_bytes=0)
    )
    second = EngineSpec(
        model_folder("random-olmo2"),
        context_length=SECOND_CONTEXT_TOKENS,
        elastic=Elastic(ledger, BUDGET_BYTES, "second"),
    )
    with running(first, second) as (one, two), PoolProcess() as holder:
        holder.call("open", ledger=str(ledger), budget_bytes=BUDGET_BYTES, name="holder", rows=1 << 18)
        yield Shared(one, two, holder, ledger)


@pytest.fixture(autouse=True)
def _same_processes_before_and_after(shared: Shared) -> Iterator[None]:
    """No test may cost an engine its life: the same schedulers serve after it, with empty caches."""
    before = shared.client("first").pid, shared.client("second").pid
    yield
    assert (shared.client("first").pid, shared.client("second").pid) == before
    shared.first.flush_cache()
    shared.second.flush_cache()


def test_bursts_on_one_engine_then_the_other_all_succeed_within_the_budget(shared: Shared) -> None:
    with MemorySampler(shared.ledger) as sampler:
        _check_burst(burst(shared.first, seed=1))
        after_first = len(sampler.samples)
        _check_burst(burst(shared.second, seed=2))
        after_second = len(sampler.samples)
        _check_burst(burst(shared.first, seed=3))
    samples = sampler.samples
    assert peak_bytes(samples) <= BUDGET_BYTES
    first = [sample.mapped_bytes["first"] for sample in samples]
    second = [sample.mapped_bytes["second"] for sample in samples]
    assert min(max(first), max(second)) > BUDGET_BYTES / 3
    # Memory moved to whoever had the load, and back.
    assert min(first[after_first:after_second]) < max(first[:after_first]) / 2
    assert min(second[after_second:]) < max(second[:after_second]) / 2
    assert max(first[after_second:]) > BUDGET_BYTES / 3


def test_bursts_on_both_engines_at_once_all_succeed_within_the_budget(shared: Shared) -> None:
    with MemorySampler(shared.ledger) as sampler, ThreadPoolExecutor(2) as threads:
        for answers in threads.map(lambda engine: burst(engine, seed=4), (shared.first, shared.second)):
            _check_burst(answers)
    assert BUDGET_BYTES / 2 < peak_bytes(sampler.samples) <= BUDGET_BYTES


def test_tokens_are_the_same_after_memory_came_and_went(shared: Shared) -> None:
    prompts = [prompt(seed=90 + index) for index in range(3)]
    for engine, other in ((shared.first, shared.second), (shared.second, shared.first)):
        before = [engine.generate(ids, 24).output_ids for ids in prompts]
        _check_burst(burst(other, seed=5))
        # Evicted in part or kept: what the prefix cache still holds must be right, so no flush in between.
        after = [engine.generate(ids, 24).output_ids for ids in prompts]
        assert after == before


def test_a_request_waits_for_memory_and_runs_when_it_is_there(shared: Shared) -> None:
    calm = shared.first.generate(prompt(seed=7), 16)
    shared.first.flush_cache()
    with budget_taken(shared.holder) as give_back:
        time.sleep(IDLE_S)
        waiting = in_background(lambda: shared.first.generate(prompt(seed=7), 16))
        until(lambda: shared.client("first").want_bytes > 0)
        # The other engine's floor is its own: it need not wait at all.
        _check_answer(shared.second.generate(prompt(seed=8), 16), 16)
        assert not waiting.done()
        give_back()
        assert waiting.result(PATIENCE_S).output_ids == calm.output_ids
    _check_answer(shared.first.generate(prompt(seed=9), 16), 16)
    assert shared.client("first").want_bytes == 0


def test_a_running_request_that_runs_out_of_memory_waits_and_finishes(shared: Shared) -> None:
    running_on = in_background(lambda: shared.first.generate(prompt(seed=10), 600))
    until(lambda: shared.client("first").rows_used > PROMPT_TOKENS + 32)
    with budget_taken(shared.holder) as give_back:
        until(lambda: shared.client("first").want_bytes > 0)
        time.sleep(1.0)
        assert not running_on.done()
        give_back()
        answer = running_on.result(PATIENCE_S)
    _check_answer(answer, 600)
    assert answer.retractions >= 1


def test_a_floor_that_comes_later_shortens_what_waits_instead_of_blocking_it(shared: Shared) -> None:
    reach_bytes = BUDGET_BYTES - shared.client("second").floor_bytes - shared.client("holder").floor_bytes
    wanted_tokens = reach_bytes // BYTES_PER_ROW - PROMPT_TOKENS - 100
    left_tokens = PROMPT_TOKENS + 100
    with budget_taken(shared.holder) as give_back:
        waiting = in_background(lambda: shared.first.generate(prompt(seed=14), wanted_tokens))
        until(lambda: shared.client("first").want_bytes > 0)
        late = Ledger(str(shared.ledger)).register(
            name="late", floor_bytes=reach_bytes - left_tokens * BYTES_PER_ROW
        )
        give_back()
        answer = waiting.result(PATIENCE_S)
    late.close()
    assert answer.finish == "length"
    assert 0 < len(answer.output_ids) < left_tokens < wanted_tokens


def test_a_prompt_that_can_never_fit_is_refused_at_once(shared: Shared) -> None:
    attainable_rows = (BUDGET_BYTES - shared.client("second").floor_bytes) // BYTES_PER_ROW
    with pytest.raises(RequestRefusedError) as refusal:
        shared.first.generate(prompt(seed=11, tokens=attainable_rows + 100), 4, timeout_s=PATIENCE_S)
    assert refusal.value.status == 400
    assert str(attainable_rows + 100) in refusal.value.message
    _check_answer(shared.first.generate(prompt(seed=12), 4), 4)


def test_flushing_returns_memory_down_to_the_padding_page(shared: Shared) -> None:
    _check_burst(burst(shared.first, seed=13))
    with MemorySampler(shared.ledger) as sampler:
        until(lambda: bool(sampler.samples))
        shared.first.flush_cache()
        seen = len(sampler.samples)
        until(lambda: len(sampler.samples) > seen + 1)
    before, after = sampler.samples[0].mapped_bytes["first"], sampler.samples[-1].mapped_bytes["first"]
    assert before > PEAK_BYTES / 2
    assert 0 < after < 32 * BYTES_PER_ROW


def burst(engine: Engine, seed: int) -> list[Completion]:
    """`BURST_REQUESTS` different requests in one message; with room for all they would hold `PEAK_BYTES`."""
    prompts = [prompt(seed=1000 * seed + index) for index in range(BURST_REQUESTS)]
    return engine.generate_together(prompts, [NEW_TOKENS] * BURST_REQUESTS)


def _check_burst(answers: list[Completion]) -> None:
    assert len(answers) == BURST_REQUESTS
    for answer in answers:
        _check_answer(answer, NEW_TOKENS)


def _check_answer(answer: Completion, tokens: int) -> None:
    assert (answer.finish, len(answer.output_ids)) == ("length", tokens)
