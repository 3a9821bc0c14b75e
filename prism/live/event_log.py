"""The record of every scheduler event and the commands it led to: JSON lines that the simulator can replay.

First line `{"header":1,"schedulers":{name: configuration}}`, then one line per event. No prompt is ever
written.
"""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING

from prism.core.codec import SchedulerConfig, canonical, encode_command, encode_config, encode_event

if TYPE_CHECKING:
    from pathlib import Path

    from prism.core.commands import Command
    from prism.core.events import Event


class EventLog:
    """An open log file (0600).

    Writing stops after `max_bytes`: a full disk must not follow from a long life.
    """

    def __init__(self, path: Path, schedulers: dict[str, SchedulerConfig], max_bytes: int = 2**30) -> None:
        """Start a new log at `path`, replacing an older one; raises OSError."""
        # line by line: a killed prism leaves whole lines behind
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        self._file: IO[str] = os.fdopen(descriptor, "w", encoding="utf-8", buffering=1)
        self._left_bytes = max_bytes
        header = {name: encode_config(config) for name, config in schedulers.items()}
        self._write(canonical({"header": 1, "schedulers": header}))

    def write(self, now_s: float, scheduler: str, event: Event, commands: list[Command]) -> None:
        """Append one decision."""
        line = {
            "now_s": now_s,
            "scheduler": scheduler,
            "event": encode_event(event),
            "commands": [encode_command(command) for command in commands],
        }
        self._write(canonical(line))

    def close(self) -> None:
        """Flush and close. Idempotent."""
        self._file.close()

    def _write(self, line: str) -> None:
        self._left_bytes -= len(line) + 1
        if self._left_bytes >= 0:
            self._file.write(line + "\n")
