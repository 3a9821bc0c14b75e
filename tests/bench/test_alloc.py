"""What the figures of bench/alloc rest on: its trace, its tracer, its measure of pages."""

import os
from itertools import islice
from pathlib import Path

import pytest

from bench.alloc.churn import make_trace, pages_over_needed, read_trace, write_trace
from bench.alloc.syscalls import count_syscalls


def test_the_committed_trace_is_what_its_seed_makes(tmp_path: Path) -> None:
    assert read_trace() == list(make_trace())
    write_trace(islice(make_trace(), 10), tmp_path / "ten.csv")
    assert read_trace(tmp_path / "ten.csv") == list(islice(make_trace(), 10))


@pytest.mark.parametrize("calls", [0, 1, 357])
def test_the_tracer_counts_a_child_that_makes_a_known_number_of_calls(
    calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    try:
        counted = count_syscalls(["-m", "bench.alloc.traced", "known", str(calls)], timeout_s=60)
    except PermissionError as error:
        pytest.skip(f"this machine forbids tracing: {error}")
    assert counted == calls


def test_a_child_that_ends_before_its_mark_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "early.py"
    script.write_text("import os; os.write(1, b'r'); os.read(0, 1)")
    try:
        with pytest.raises(RuntimeError, match="before its end mark"):
            count_syscalls([str(script)], timeout_s=60)
    except PermissionError as error:
        pytest.skip(f"this machine forbids tracing: {error}")
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)  # nothing is left behind


def test_pages_are_counted_against_what_the_rows_in_use_would_fill() -> None:
    """With a page per row nothing can be left over; with wide pages something is."""
    trace = [request for request in read_trace() if request.arrives_step % 7 == 0]
    assert pages_over_needed(trace, 1, "best_fit", 1) == 1.0
    assert pages_over_needed(trace, 256, "best_fit", 1) > 1.0
