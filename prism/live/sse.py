"""Server-sent events of an engine's stream: cut into events, and what each says about progress."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

MAX_EVENT_BYTES = 4 * 2**20
DONE = b"data: [DONE]\n\n"


class StreamError(RuntimeError):
    """The engine's stream is not what it should be."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event; `raw` ends with its blank line.

    `progress`: it carries a step of generation; `content`: that step has text.
    """

    raw: bytes
    done: bool = False
    progress: bool = False
    content: bool = False
    usage_only: bool = False
    completion_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None


class SseSplitter:
    """Cuts a byte stream into events, wherever the network cut it."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def push(self, data: bytes) -> list[bytes]:
        """Events completed by `data`, each with its blank line; raises `StreamError` when one is too long."""
        self._buffer += data
        events: list[bytes] = []
        while (end := self._buffer.find(b"\n\n")) >= 0:
            events.append(bytes(self._buffer[: end + 2]))
            del self._buffer[: end + 2]
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise StreamError(f"the engine sent an event of more than {MAX_EVENT_BYTES} bytes")
        return events


def read_event(raw: bytes) -> StreamEvent:
    """What one event of a chat or text completion stream says."""
    if not raw.startswith(b"data:"):
        return StreamEvent(raw)  # a comment or keep-alive
    payload = raw[5:].strip()
    if payload == b"[DONE]":
        return StreamEvent(raw, done=True)
    try:
        document = json.loads(payload)
    except ValueError:
        raise StreamError("the engine sent an event that is not JSON") from None
    if not isinstance(document, dict):
        raise StreamError("the engine sent an event that is no JSON object")
    if "error" in document:
        error = document["error"]
        message = error.get("message") if isinstance(error, dict) else error
        return StreamEvent(raw, error=str(message))
    choices = document.get("choices") or []
    usage = document.get("usage")
    reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    return StreamEvent(
        raw,
        progress=bool(choices),
        content=any(_has_content(choice) for choice in choices),
        usage_only=not choices and isinstance(usage, dict),
        completion_tokens=usage.get("completion_tokens") if isinstance(usage, dict) else None,
        finish_reason=reasons[-1] if reasons else None,
    )


def error_event(document: dict[str, Any]) -> bytes:
    """An error as the last event of a stream that already began."""
    return b"data: " + json.dumps(document).encode() + b"\n\n" + DONE


def _has_content(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(delta.get(key) for key in ("content", "reasoning_content", "tool_calls"))
    return bool(choice.get("text"))
