"""Event logs: what schedulers were told and what they answered, as JSON lines; recorded live or simulated.

First line `{"header":1,"schedulers":{name: configuration}}`, then `{"now_s","scheduler","event","commands"}`
per event. Fed to fresh schedulers, a log must give the same commands, byte for byte.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from prism.core import GlobalScheduler, LocalScheduler
from prism.core.codec import (
    CodecError,
    JsonDict,
    SchedulerConfig,
    canonical,
    decode_config,
    decode_event,
    encode_command,
    encode_config,
    encode_event,
)
from prism.core.commands import Command
from prism.core.config import LocalConfig
from prism.core.events import Event

Scheduler = LocalScheduler | GlobalScheduler
MAX_LINE_CHARS = 2**24


class EventLogError(ValueError):
    """The log cannot be read, or replays differently; the message names file and line."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """How much a replay compared."""

    events: int
    commands: int


class Recorder:
    """Writes a log to an open text file."""

    def __init__(self, out: IO[str], schedulers: dict[str, SchedulerConfig]) -> None:
        self._out = out
        configs = {name: encode_config(config) for name, config in schedulers.items()}
        self._out.write(canonical({"header": 1, "schedulers": configs}) + "\n")

    def write(self, now_s: float, scheduler: str, event: Event, commands: list[Command]) -> None:
        """Append one decision."""
        line = {
            "now_s": now_s,
            "scheduler": scheduler,
            "event": encode_event(event),
            "commands": [encode_command(command) for command in commands],
        }
        self._out.write(canonical(line) + "\n")


def make_scheduler(config: SchedulerConfig) -> Scheduler:
    """A fresh scheduler of the kind the configuration is for."""
    return LocalScheduler(config) if isinstance(config, LocalConfig) else GlobalScheduler(config)


def replay(path: str | Path) -> Replayed:
    """Feed a log's events to fresh schedulers; raises `EventLogError` at the first command that differs."""
    path = Path(path)
    events = commands = 0
    try:
        with path.open(encoding="utf-8") as stream:
            lines = _lines(path, stream)
            _, header = next(lines, (1, {}))
            schedulers = _schedulers(path, header)
            for number, line in lines:
                events += 1
                commands += _replay_line(f"{path}, line {number}", line, schedulers)
    except (OSError, UnicodeDecodeError) as error:
        raise EventLogError(f"{path}: cannot be read: {error}") from error
    return Replayed(events, commands)


def _lines(path: Path, stream: IO[str]) -> Iterator[tuple[int, JsonDict]]:
    number = 0
    while text := stream.readline(MAX_LINE_CHARS):
        number += 1
        try:
            line = json.loads(text)
        except ValueError as error:
            raise EventLogError(f"{path}, line {number}: is not JSON: {error}") from error
        if not isinstance(line, dict):
            raise EventLogError(f"{path}, line {number}: is not an object")
        yield number, line


def _schedulers(path: Path, header: JsonDict) -> dict[str, Scheduler]:
    configs = header.get("schedulers")
    if header.get("header") != 1 or not isinstance(configs, dict):
        raise EventLogError(f"{path}, line 1: is no header of version 1")
    try:
        return {name: make_scheduler(decode_config(config)) for name, config in configs.items()}
    except ValueError as error:
        raise EventLogError(f"{path}, line 1: {error}") from error


def _replay_line(where: str, line: JsonDict, schedulers: dict[str, Scheduler]) -> int:
    """Compare one line's commands; returns how many there are."""
    missing = {"now_s", "scheduler", "event", "commands"} - set(line)
    if missing:
        raise EventLogError(f"{where}: {min(missing)!r} is missing")
    scheduler = schedulers.get(line["scheduler"]) if isinstance(line["scheduler"], str) else None
    if scheduler is None:
        raise EventLogError(f"{where}: scheduler {line['scheduler']!r} is not in the header")
    now_s, recorded = line["now_s"], line["commands"]
    if isinstance(now_s, bool) or not isinstance(now_s, int | float) or not isinstance(recorded, list):
        raise EventLogError(f"{where}: now_s must be a number and commands a list")
    try:
        event = decode_event(line["event"])
    except CodecError as error:
        raise EventLogError(f"{where}: {error}") from error
    decided = canonical([encode_command(command) for command in scheduler.on_event(event, float(now_s))])
    if decided != canonical(recorded):
        raise EventLogError(f"{where}: the log says {canonical(recorded)}, the scheduler now says {decided}")
    return len(recorded)
