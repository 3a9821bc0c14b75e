"""Bounds of a request's fields that SGLang does not check before it computes with them.

One value beyond them raises in the engine's scheduler process and ends every request of the model, so they
are refused here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prism.live.openai_errors import ApiError

if TYPE_CHECKING:
    from prism.live.api_request import ApiRequest

MAX_CHOICES = 16  # `n`: each choice is a request of its own to the engine, but one to the scheduler
MAX_LOGPROBS = 20  # OpenAI's bound for `top_logprobs`; the engine would take top-k over any number
MAX_INT32 = 2**31 - 1  # the engine keeps `min_tokens` in 32 bits
TOP_K_OFF = -1


def check_top_k(top_k: int | None) -> int | None:
    """What holds for every model; raises `ValueError`."""
    if top_k is None or top_k == TOP_K_OFF or top_k >= 1:
        return top_k
    raise ValueError(f"must be {TOP_K_OFF} (off) or from 1 to the size of the model's vocabulary")


def check_vocabulary(api: ApiRequest, vocab_size: int) -> None:
    """Token ids and `top_k` against the model's vocabulary; raises `ApiError` (400) that names the field."""
    for name, largest in api.largest_ids:
        if largest >= vocab_size:
            message = f"field `{name}`: token ids of {api.model!r} are 0 to {vocab_size - 1}, got {largest}"
            raise ApiError(400, message, "invalid_field", name)
    if api.top_k is not None and api.top_k > vocab_size:
        message = f"field `top_k`: should be {TOP_K_OFF} (off) or 1 to {vocab_size} (the vocabulary of "
        raise ApiError(400, f"{message}{api.model!r}), got {api.top_k}", "invalid_field", "top_k")


def check_encodable(document: dict[str, Any]) -> None:
    """Every text must have a UTF-8 form, which JSON's escapes do not ensure: they can write half a pair.

    Raises `ApiError` (400) that names the field: tokenizers and engines fail on such texts in their own ways.
    """
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        name = field_path(_first_unencodable(document))
        where = f"field `{name}`: " if name else ""
        message = f"{where}text that cannot be encoded as UTF-8 (half of a surrogate pair)"
        raise ApiError(400, message, "invalid_field", name or None) from None
    except (RecursionError, ValueError) as error:  # it could be read, but not be passed on to the engine
        raise ApiError(400, f"the body is not usable JSON: {error}", "invalid_json") from None


def field_path(path: Sequence[str | int]) -> str:
    """`("messages", 0, "role")` as `messages[0].role`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _first_unencodable(document: dict[str, Any]) -> tuple[str | int, ...]:
    """Path of a text at fault; of the object when it is the name of one of its fields."""
    todo: list[tuple[tuple[str | int, ...], Any]] = [((), document)]  # no recursion: bodies may be deep
    while todo:
        path, value = todo.pop()
        if isinstance(value, str) and not _encodable(value):
            return path
        if isinstance(value, dict):
            if not all(map(_encodable, value)):
                return path
            todo += [((*path, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            todo += [((*path, index), item) for index, item in enumerate(value)]
    return ()


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
