"""An engine that polls when idle waits for memory too, and a killed holder ends the wait."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcached._core import Ledger
from tests.correctness.conftest import model_folder, running
from tests.correctness.engine import Elastic, Engine, EngineSpec
from tests.correctness.pool_process import PoolProcess
from tests.correctness.pressure import IDLE_S, PATIENCE_S, in_background, prompt, until

pytestmark = pytest.mark.engine

BUDGET_BYTES = 64 << 20


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ledger") / "host0.ledger"


@pytest.fixture(scope="module")
def engine(ledger: Path) -> Iterator[Engine]:
    spec = EngineSpec(
        model_folder("random-qwen3"),
        sleep_on_idle=False,
        elastic=Elastic(ledger, BUDGET_BYTES, "awake", floor_bytes=0),
    )
    with running(spec) as (only,):
        yield only


@pytest.mark.parametrize("killed", [False, True], ids=["drained", "killed"])
def test_a_request_waits_for_memory_and_runs_when_it_is_there(
    engine: Engine, ledger: Path, killed: bool
) -> None:
    calm = engine.generate(prompt(seed=1), 8)
    engine.flush_cache()
    with PoolProcess() as holder:
        holder.call("open", ledger=str(ledger), budget_bytes=BUDGET_BYTES, name="holder", rows=1 << 17)
        holder.call("fill")
        time.sleep(IDLE_S)
        waiting = in_background(lambda: engine.generate(prompt(seed=1), 8))
        until(lambda: _wanted_bytes(ledger) > 0)
        time.sleep(1.0)
        assert not waiting.done()
        if killed:
            holder.kill()
        else:
            holder.call("drain")
        assert waiting.result(PATIENCE_S).output_ids == calm.output_ids
    assert engine.generate(prompt(seed=2), 8).finish == "length"


def _wanted_bytes(ledger: Path) -> int:
    return sum(client.want_bytes for client in Ledger(str(ledger)).snapshot().clients)
