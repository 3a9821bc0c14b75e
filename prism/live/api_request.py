"""Reading a completion request: JSON, the fields prism needs or bounds, and what is forwarded to the engine.

Only what can be judged without the engine is judged here, and what would end the engine instead of the
request (see `request_limits`); every other field goes through as it came.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from prism.live.openai_errors import ApiError
from prism.live.request_limits import (
    MAX_CHOICES,
    MAX_INT32,
    MAX_LOGPROBS,
    check_encodable,
    check_top_k,
    field_path,
)

Route = Literal["/v1/chat/completions", "/v1/completions"]
_COMPLETION_DEFAULT_TOKENS = 16  # OpenAI's default for /v1/completions
_MAX_PARTS = 2048
_UNION_BRANCHES = (
    "str",
    "list[dict[str,any]]",
)  # pydantic names the tried branch of `content` in the location

Prompt = str | list[int] | list[str | list[int]]
_TokenIds = list[Annotated[int, Field(ge=0)]]


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="allow")
    include_usage: bool = False


class _Common(BaseModel):
    model_config = ConfigDict(extra="allow")
    model: str = Field(min_length=1, max_length=256)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = None
    top_k: Annotated[int | None, AfterValidator(check_top_k)] = None
    min_tokens: int | None = Field(default=None, ge=0, le=MAX_INT32)
    stop_token_ids: _TokenIds | None = None


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow")
    role: str = Field(min_length=1)
    content: str | list[dict[str, Any]] | None = None


class _Chat(_Common):
    messages: list[_Message] = Field(min_length=1, max_length=_MAX_PARTS)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    input_ids: _TokenIds | None = None  # SGLang's own: stands in for the rendered messages


def _check_prompt(prompt: Any) -> Prompt:
    """A text, token ids, or a list of either: checked by hand, a union's own message helps nobody."""
    if _is_prompt(prompt):
        return prompt  # type: ignore[no-any-return]
    if isinstance(prompt, list) and 0 < len(prompt) <= _MAX_PARTS and all(map(_is_prompt, prompt)):
        return prompt
    raise ValueError(
        f"must be a non-empty string, a non-empty list of token ids, or a list of up to {_MAX_PARTS} of these"
    )


def _is_prompt(value: object) -> bool:
    if isinstance(value, str):
        return bool(value)
    return isinstance(value, list) and bool(value) and all(type(item) is int and item >= 0 for item in value)


class _Completion(_Common):
    prompt: Annotated[Any, AfterValidator(_check_prompt)]
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A checked request. `texts` and `token_ids` (a count) together are its prompt.

    `largest_ids` has the largest token id of each field that holds some; like `top_k` it is judged when the
    model is known. `document` is what came, for the engine.
    """

    route: Route
    model: str
    stream: bool
    include_usage: bool
    max_tokens: int | None
    choices: int
    messages: int
    texts: tuple[str, ...]
    token_ids: int
    largest_ids: tuple[tuple[str, int], ...]
    top_k: int | None
    document: dict[str, Any]

    def engine_body(self) -> bytes:
        """The body for the engine.

        A stream always ends with its usage, which counts output tokens exactly.
        """
        document = self.document
        if self.stream:
            options = {**(document.get("stream_options") or {}), "include_usage": True}
            document = {**document, "stream_options": options}
        return json.dumps(document).encode()


def parse_request(route: Route, body: bytes) -> ApiRequest:
    """The request in `body`; raises `ApiError` (400) that names the field."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", "invalid_json") from None
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise ApiError(400, f"the body must be a JSON object, not {kind}", "invalid_json")
    check_encodable(document)
    try:
        if route == "/v1/chat/completions":
            return _from_chat(document, _Chat.model_validate(document))
        return _from_completion(document, _Completion.model_validate(document))
    except ValidationError as error:
        raise _field_error(error) from None


def _from_chat(document: dict[str, Any], chat: _Chat) -> ApiRequest:
    texts: list[str] = []
    for message in chat.messages:
        if isinstance(message.content, str):
            texts.append(message.content)
        elif message.content is not None:
            texts += [part["text"] for part in message.content if isinstance(part.get("text"), str)]
    limit = chat.max_completion_tokens if chat.max_completion_tokens is not None else chat.max_tokens
    prompt = _PromptParts(texts, messages=len(chat.messages))
    if chat.input_ids:
        prompt = _PromptParts([], chat.input_ids, "input_ids")
    return _request("/v1/chat/completions", document, chat, limit, prompt)


def _from_completion(document: dict[str, Any], completion: _Completion) -> ApiRequest:
    prompts = completion.prompt if isinstance(completion.prompt, list) else [completion.prompt]
    parts = _PromptParts([])
    for prompt in prompts:
        if isinstance(prompt, str):
            parts.texts.append(prompt)
        elif isinstance(prompt, int):
            parts.ids.append(prompt)
        else:
            parts.ids.extend(prompt)
    limit = _COMPLETION_DEFAULT_TOKENS if completion.max_tokens is None else completion.max_tokens
    return _request("/v1/completions", document, completion, limit, parts)


@dataclass(frozen=True, slots=True)
class _PromptParts:
    """What the prompt consists of; `ids` came in the field `ids_field`."""

    texts: list[str]
    ids: list[int] = field(default_factory=list)
    ids_field: str = "prompt"
    messages: int = 0


def _request(
    route: Route, document: dict[str, Any], common: _Common, max_tokens: int | None, prompt: _PromptParts
) -> ApiRequest:
    options = common.stream_options
    id_fields = {prompt.ids_field: prompt.ids, "stop_token_ids": common.stop_token_ids}
    return ApiRequest(
        route=route,
        model=common.model,
        stream=bool(common.stream),
        include_usage=options is not None and options.include_usage,
        max_tokens=max_tokens,
        choices=common.n or 1,
        messages=prompt.messages,
        texts=tuple(prompt.texts),
        token_ids=len(prompt.ids),
        largest_ids=tuple((name, max(ids)) for name, ids in id_fields.items() if ids),
        top_k=common.top_k,
        document=document,
    )


def _field_error(error: ValidationError) -> ApiError:
    """The deepest problem pydantic found; values are not repeated, they may be somebody's prompt."""
    details = max(error.errors(include_url=False, include_input=False), key=_weight)
    path = [part for part in details["loc"] if part not in _UNION_BRANCHES]
    name = field_path(path)
    if details["type"] == "missing":
        return ApiError(400, f"field `{name}` is missing", "missing_field", name)
    message = details["msg"].removeprefix("Value error, ")
    return ApiError(400, f"field `{name}`: {message[:1].lower()}{message[1:]}", "invalid_field", name)


def _weight(details: Any) -> int:
    return 1 if details["type"] == "missing" else 0
