"""Events, commands and configurations survive JSON exactly; anything else is refused with its place."""

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.core import codec, commands, config, events

st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(
    config.LocalConfig,
    st.builds(
        config.LocalConfig,
        models=st.lists(st.from_type(config.LocalModel), max_size=2).map(tuple),
        window_prefill_tokens=st.integers(1, 9999),
        late_share=st.floats(0, 0.9),
        max_queued=st.integers(1, 99),
        max_attempts=st.integers(1, 9),
    ),
)


@pytest.mark.parametrize("kind", get_args(events.Event), ids=lambda kind: kind.__name__)
def test_events_round_trip(kind: type) -> None:
    @given(st.from_type(kind))
    def check(event: events.Event) -> None:
        text = codec.canonical(codec.encode_event(event))
        decoded = codec.decode_event(json.loads(text))
        assert decoded == event
        assert codec.canonical(codec.encode_event(decoded)) == text

    check()


@pytest.mark.parametrize("kind", get_args(commands.Command), ids=lambda kind: kind.__name__)
def test_commands_round_trip(kind: type) -> None:
    @given(st.from_type(kind))
    def check(command: commands.Command) -> None:
        text = codec.canonical(codec.encode_command(command))
        assert codec.decode_command(json.loads(text)) == command

    check()


@given(st.from_type(config.LocalConfig) | st.from_type(config.GlobalConfig))
def test_configs_round_trip(value: codec.SchedulerConfig) -> None:
    assert codec.decode_config(json.loads(codec.canonical(codec.encode_config(value)))) == value


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (["Arrived"], "event: expected an object"),
        ({"type": "Arived"}, "event.type: 'Arived'"),
        ({"type": "Cancelled"}, "field 'request_id' is missing"),
        ({"type": "Cancelled", "request_id": "a", "why": 1}, "unknown field 'why'"),
        ({"type": "Cancelled", "request_id": 7}, "Cancelled.request_id: expected str, got 7"),
        ({"type": "PrefillProgress", "request_id": "a", "prefilled_tokens": True}, "prefilled_tokens"),
        ({"type": "PrefillProgress", "request_id": "a", "prefilled_tokens": 1.0}, "prefilled_tokens"),
        ({"type": "Finished", "request_id": "a", "reason": "done", "output_tokens": 1}, "reason: 'done'"),
        (
            {"type": "Snapshot", "window_s": 1.0, "loads": [{"type": "X"}], "instances": [], "devices": []},
            "loads[0].type",
        ),
        (
            {"type": "Snapshot", "window_s": float("inf"), "loads": [], "instances": [], "devices": []},
            "window_s",
        ),
    ],
)
def test_bad_input_names_the_place(data: object, place: str) -> None:
    with pytest.raises(codec.CodecError) as caught:
        codec.decode_event(data)
    assert place in str(caught.value)


def test_non_finite_numbers_are_not_written() -> None:
    with pytest.raises(codec.CodecError):
        codec.canonical(codec.encode_command(commands.WakeAt("t", float("nan"))))
