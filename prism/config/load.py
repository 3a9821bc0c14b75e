"""From YAML text to a checked `Config`, or a `ConfigError` that lists every problem."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from prism.config.errors import ConfigError, Problem
from prism.config.schema import Config

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_CONFIG_BYTES = 2**20
_MAX_SHOWN = 80


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice (YAML would silently keep the last)."""


def _construct_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, (dict, list)):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
        if key in mapping:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is written twice", key_node.start_mark
            )
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)


def load_config(path: Path) -> Config:
    """Read and check the file; relative paths in it are taken from its own folder."""
    source = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError(source, [Problem("", f"cannot be read: {error.strerror}")]) from error
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(
            source, [Problem("", f"is larger than {MAX_CONFIG_BYTES} bytes; is it the right file?")]
        )
    try:
        document = yaml.load(data, Loader=_StrictLoader)  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(source, [Problem("", f"is no YAML: {' '.join(str(error).split())}")]) from error
    return _resolve_paths(parse_config(document, source), path.resolve().parent)


def parse_config(document: object, source: str = "configuration") -> Config:
    """Check an already parsed document."""
    if not isinstance(document, dict):
        kind = "nothing" if document is None else type(document).__name__
        raise ConfigError(source, [Problem("", f"holds {kind}; expected keys such as `models:`")])
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        raise ConfigError(
            source, [_problem(details) for details in error.errors(include_url=False)]
        ) from None
    problems = _cross_check(config)
    if problems:
        raise ConfigError(source, problems)
    return config


def _resolve_paths(config: Config, folder: Path) -> Config:
    def resolve(value: str | None) -> str | None:
        return None if value is None else str(folder / Path(value).expanduser())

    models = [model.model_copy(update={"path": resolve(model.path)}) for model in config.models]
    server = config.server.model_copy(update={"api_key_file": resolve(config.server.api_key_file)})
    update = {name: resolve(getattr(config, name)) for name in ("runtime_dir", "log_dir", "event_log")}
    return config.model_copy(update={"models": models, "server": server, **update})


def _cross_check(config: Config) -> list[Problem]:
    """What no single field shows: names written twice, devices that are not there."""
    problems: list[Problem] = []
    for section, names in (
        ("devices", [device.name for device in config.devices]),
        ("models", [model.name for model in config.models]),
    ):
        for index, name in enumerate(names):
            if name in names[:index]:
                problems.append(
                    Problem(f"{section}[{index}].name", f"{name!r} is used twice; give each its own name")
                )
    known = [device.name for device in config.devices]
    for index, model in enumerate(config.models):
        path = f"models[{index}]"
        if model.device is not None and model.device not in known:
            problems.append(
                Problem(f"{path}.device", f"{model.device!r} is no device; known: {', '.join(known)}")
            )
        floor, limit = model.kv.floor_bytes, model.kv.limit_bytes
        if floor is not None and limit is not None and floor > limit:
            message = f"{floor} is more than kv.limit_bytes ({limit}); lower the floor or raise the limit"
            problems.append(Problem(f"{path}.kv.floor_bytes", message))
    return problems


def _problem(details: ErrorDetails) -> Problem:
    location = [part for part in details["loc"] if part != "[key]"]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    if details["type"] == "extra_forbidden":
        return Problem(path, _unknown_key(location))
    if details["type"] == "missing":
        return Problem(path, "is missing; add it")
    message = details["msg"].removeprefix("Value error, ")
    return Problem(path, f"got {_shown(details['input'])}: {message[:1].lower()}{message[1:]}")


def _unknown_key(location: list[int | str]) -> str:
    known = _known_keys(location[:-1])
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    hint = f"did you mean `{close[0]}`? " if close else ""
    return f"unknown key; {hint}known here: {', '.join(known)}"


def _known_keys(location: list[int | str]) -> list[str]:
    section: type[BaseModel] = Config
    for part in location:
        if isinstance(part, str) and part in section.model_fields:
            annotation = section.model_fields[part].annotation
            options = (annotation, *get_args(annotation))
            models = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
            if models:
                section = models[0]
    return sorted(section.model_fields)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
