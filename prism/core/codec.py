"""JSON form of events, commands and configurations: tagged dicts, decoded strictly.

A value becomes `{"type": <class name>, <field>: <value>, ...}`. Decoding checks every field against the
dataclass: missing or unknown fields, wrong types, unknown tags and non-finite numbers raise `CodecError`
naming the place. `canonical` is the one byte form; equal values give equal bytes.
"""

import dataclasses
import functools
import json
import math
import types
import typing
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from prism.core import commands, config, events
from prism.core.commands import Command
from prism.core.events import Event

JsonDict = dict[str, Any]
SchedulerConfig = config.LocalConfig | config.GlobalConfig


class CodecError(ValueError):
    """The input is no valid event, command or configuration; the message says where and what was expected."""


def _tags(union: object) -> dict[str, type]:
    return {cls.__name__: cls for cls in get_args(union)}


_EVENTS = _tags(events.Event)
_COMMANDS = _tags(commands.Command)
_CONFIGS = _tags(SchedulerConfig)


def encode_event(event: Event) -> JsonDict:
    """The tagged dict of an event."""
    return _encode_object(event)


def decode_event(data: object) -> Event:
    """The event of a tagged dict; raises `CodecError`."""
    return cast("Event", _decode_tagged(data, _EVENTS, "event"))


def encode_command(command: Command) -> JsonDict:
    """The tagged dict of a command."""
    return _encode_object(command)


def decode_command(data: object) -> Command:
    """The command of a tagged dict; raises `CodecError`."""
    return cast("Command", _decode_tagged(data, _COMMANDS, "command"))


def encode_config(value: SchedulerConfig) -> JsonDict:
    """The tagged dict of a scheduler's configuration."""
    return _encode_object(value)


def decode_config(data: object) -> SchedulerConfig:
    """The configuration of a tagged dict; raises `CodecError`."""
    return cast("SchedulerConfig", _decode_tagged(data, _CONFIGS, "config"))


def canonical(data: object) -> str:
    """One line of JSON: keys in given order, no spaces, non-finite numbers refused."""
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise CodecError(f"value cannot be written as JSON: {error}") from error


def _encode_object(value: Any) -> JsonDict:
    encoded: JsonDict = {"type": type(value).__name__}
    for field in dataclasses.fields(value):
        encoded[field.name] = _encode_value(getattr(value, field.name))
    return encoded


def _encode_value(value: object) -> object:
    if dataclasses.is_dataclass(value):
        return _encode_object(value)
    if isinstance(value, tuple):
        return [_encode_value(item) for item in value]
    return value


def _decode_tagged(data: object, tags: dict[str, type], where: str) -> object:
    if not isinstance(data, dict):
        raise CodecError(f"{where}: expected an object, got {type(data).__name__}")
    tag = data.get("type")
    cls = tags.get(tag) if isinstance(tag, str) else None
    if cls is None:
        raise CodecError(f"{where}.type: {tag!r} is not one of {', '.join(sorted(tags))}")
    return _decode_fields(cls, data, f"{where} {tag}")


@functools.cache
def _shape(cls: type) -> dict[str, tuple[Any, bool]]:
    """Per field of a dataclass: its type, and whether it is required."""
    hints = get_type_hints(cls)
    return {
        field.name: (hints[field.name], field.default is dataclasses.MISSING)
        for field in dataclasses.fields(cls)
    }


def _decode_fields(cls: type, data: JsonDict, where: str) -> object:
    shape = _shape(cls)
    unknown = sorted(set(data) - set(shape) - {"type"})
    if unknown:
        raise CodecError(f"{where}: unknown field {unknown[0]!r}")
    values: JsonDict = {}
    for name, (kind, required) in shape.items():
        if name in data:
            values[name] = _decode_value(kind, data[name], f"{where}.{name}")
        elif required:
            raise CodecError(f"{where}: field {name!r} is missing")
    return cls(**values)


def _decode_value(kind: Any, data: object, where: str) -> object:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(kind), data, where)
    if origin is Literal:
        if data not in get_args(kind):
            raise CodecError(f"{where}: {data!r} is not one of {', '.join(map(repr, get_args(kind)))}")
        return data
    if origin is tuple:
        if not isinstance(data, list):
            raise CodecError(f"{where}: expected a list, got {type(data).__name__}")
        item_kind = typing.get_args(kind)[0]
        return tuple(_decode_value(item_kind, item, f"{where}[{i}]") for i, item in enumerate(data))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _decode_tagged(data, {kind.__name__: kind}, where)
    return _decode_scalar(kind, data, where)


def _decode_union(options: tuple[Any, ...], data: object, where: str) -> object:
    if data is None and type(None) in options:
        return None
    rest = [option for option in options if option is not type(None)]
    tags = {o.__name__: o for o in rest if isinstance(o, type) and dataclasses.is_dataclass(o)}
    if tags:
        return _decode_tagged(data, tags, where)
    return _decode_value(rest[0], data, where)


def _decode_scalar(kind: type, data: object, where: str) -> object:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if isinstance(data, bool) is not (kind is bool) or not isinstance(data, kind):
        raise CodecError(f"{where}: expected {kind.__name__}, got {data!r}")
    if isinstance(data, float) and not math.isfinite(data):
        raise CodecError(f"{where}: {data!r} is not a finite number")
    return data
