"""What is written is read back; what is wrong is named by file, line, field and value."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.traces import TraceError, TraceRequest, read_trace, write_trace
from prism.traces.writer import render_trace

HEADER = "arrival_s,model,prompt_tokens,output_tokens\n"
seconds = st.floats(1e-6, 1e6)
requests = st.lists(
    st.builds(
        TraceRequest,
        arrival_s=st.floats(0, 1e6),
        model=st.text("abc/-, \"'é", min_size=1).filter(lambda s: s == s.strip()),
        prompt_tokens=st.integers(1, 10**8),
        output_tokens=st.integers(1, 10**8),
        ttft_slo_s=st.none() | seconds,
        tpot_slo_s=st.none() | seconds,
    ),
    min_size=1,
    max_size=20,
).map(lambda rows: sorted(rows, key=lambda r: r.arrival_s))


@given(requests)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, requests: list[TraceRequest]) -> None:
    for name in ("t.csv", "t.csv.gz"):
        path = tmp_path_factory.mktemp("trace") / name
        write_trace(path, requests)
        assert read_trace(path) == requests


def test_equal_requests_give_equal_bytes(tmp_path: Path) -> None:
    rows = [TraceRequest(0.5, "m", 3, 4)]
    for name in ("a.csv.gz", "b.csv.gz"):
        write_trace(tmp_path / name, rows)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    assert render_trace(rows) == HEADER + "0.5,m,3,4\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: column 'arrival_s' is missing"),
        ("arrival_s,model,prompt_tokens\n", "line 1: column 'output_tokens' is missing"),
        ("arrival_s,model,prompt_tokens,output_tokens,hue\n", "line 1: unknown column 'hue'"),
        ("arrival_s,model,model,prompt_tokens,output_tokens\n", "line 1: column 'model' appears twice"),
        (HEADER, "has no requests"),
        (HEADER + "0,m,1\n", "line 2: has 3 fields, the header has 4"),
        (HEADER + "0,m,1,1\n-1,m,1,1\n", "line 3: arrival_s is '-1'"),
        (HEADER + "nan,m,1,1\n", "line 2: arrival_s is 'nan'"),
        (HEADER + ",m,1,1\n", "line 2: arrival_s is ''"),
        (HEADER + "0,,1,1\n", "line 2: model is ''"),
        (HEADER + "0,m,0,1\n", "line 2: prompt_tokens is '0'; expected a whole number from 1"),
        (HEADER + "0,m,1.5,1\n", "line 2: prompt_tokens is '1.5'"),
        (HEADER + "0,m,1,-2\n", "line 2: output_tokens is '-2'"),
        (HEADER + "0,m,1,99999999999999\n", "line 2: output_tokens is '99999999999999'"),
        (HEADER + "2,m,1,1\n1,m,1,1\n", "line 3: arrival_s 1.0 is before the row above (2.0)"),
        (HEADER + '0,"m,1,1\n', "is not CSV"),
        ("arrival_s,model,prompt_tokens,output_tokens,ttft_slo_s\n0,m,1,1,0\n", "line 2: ttft_slo_s is '0'"),
    ],
)
def test_bad_traces(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "plain.csv.gz").write_text("not gzip")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(HEADER.encode() * 100)[:-20])
    for name in ("binary.csv", "plain.csv.gz", "cut.csv.gz", "missing.csv"):
        with pytest.raises(TraceError, match=name):
            read_trace(tmp_path / name)


def test_too_many_rows(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text(HEADER + "0,m,1,1\n" * 4)
    assert len(read_trace(path, max_rows=4)) == 4
    with pytest.raises(TraceError, match="line 5: more than 3 rows"):
        read_trace(path, max_rows=3)
