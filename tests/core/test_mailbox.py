"""One event at a time, in order, whatever handling one leads to."""

import pytest

from prism.core.events import DeviceLost, Event
from prism.core.mailbox import Mailbox


def test_what_an_event_leads_to_comes_after_it() -> None:
    seen: list[str] = []

    def handle(scheduler: str, event: Event) -> None:
        assert isinstance(event, DeviceLost)
        seen.append(f"{scheduler} {event.device} begins")
        if event.device == "a":
            mailbox.put("two", DeviceLost("b", "test"))
            mailbox.put("one", DeviceLost("c", "test"))
        seen.append(f"{scheduler} {event.device} ends")

    mailbox = Mailbox(handle)
    mailbox.put("one", DeviceLost("a", "test"))
    order = ["one a", "two b", "one c"]
    assert seen == [f"{step} {edge}" for step in order for edge in ("begins", "ends")]


def test_an_event_that_fails_loses_none_of_the_others() -> None:
    seen: list[str] = []

    def handle(_scheduler: str, event: Event) -> None:
        assert isinstance(event, DeviceLost)
        seen.append(event.device)
        if event.device == "a":
            mailbox.put("one", DeviceLost("b", "test"))
            raise RuntimeError("a scheduler's bug")

    mailbox = Mailbox(handle)
    with pytest.raises(RuntimeError, match="bug"):
        mailbox.put("one", DeviceLost("a", "test"))
    mailbox.put("one", DeviceLost("c", "test"))
    assert seen == ["a", "b", "c"]
