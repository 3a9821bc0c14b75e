"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    408: "timeout_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    502: "engine_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_MAX_MESSAGE = 2000


@dataclass(frozen=True, slots=True)
class ApiError(Exception):
    """An answer that is no success. `param` names the field at fault, `code` is a word for programs."""

    status: int
    message: str
    code: str
    param: str | None = None
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return self.message

    def document(self) -> dict[str, Any]:
        """The JSON body."""
        kind = _TYPES.get(self.status, "api_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def body(self) -> bytes:
        """The encoded JSON body."""
        return json.dumps(self.document()).encode()

    def headers(self) -> dict[str, str]:
        """Extra response headers."""
        if self.retry_after_s is None:
            return {}
        return {"retry-after": str(max(1, round(self.retry_after_s + 0.499)))}


def from_engine(status: int, body: bytes) -> ApiError:
    """An engine's answer as ours: 4xx with its message, anything else as 502."""
    message, param = _engine_message(body)
    if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return ApiError(status, message or f"the engine answered {status}", "engine_rejected", param)
    return ApiError(502, f"the engine answered {status}: {message or 'without a message'}", "engine_error")


def _engine_message(body: bytes) -> tuple[str, str | None]:
    """SGLang puts the message at the top level, others beneath `error`; traceback parts are cut off."""
    try:
        document = json.loads(body)
    except ValueError:
        return body.decode("utf-8", errors="replace").strip()[:_MAX_MESSAGE], None
    inner = document.get("error", document) if isinstance(document, dict) else {}
    if isinstance(inner, str):
        return inner[:_MAX_MESSAGE], None
    message, param = inner.get("message"), inner.get("param")
    text = message if isinstance(message, str) else json.dumps(document)
    return text.split('\n\n  File "')[0][:_MAX_MESSAGE], param if isinstance(param, str) else None
