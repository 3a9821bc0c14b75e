"""The record of every scheduler event and the commands it led to: JSON lines that the simulator can replay.

First line `{"header":1,"schedulers":{name: configuration}}`, then one line per event. No prompt is ever
written.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

from prism.core.codec import SchedulerConfig, canonical, encode_command, encode_config, encode_event

if TYPE_CHECKING:
    from pathlib import Path

    from prism.core.commands import Command
    from prism.core.events import Event


log = logging.getLogger("prism.eventlog")


class EventLog:
    """An open log file (0600).

    Writing stops after `max_bytes`: a full disk must not follow from a long life. It also stops, with one
    warning, when the disk fails: requests must not.
    """

    def __init__(self, path: Path, schedulers: dict[str, SchedulerConfig], max_bytes: int = 2**30) -> None:
        """Start a new log at `path`, replacing an older one; raises OSError."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        # unbuffered, line by line: a killed prism leaves whole lines behind, a failed write nothing to flush
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._path = path
        self._open = True
        self._size_bytes = 0
        self._max_bytes = max_bytes
        header = {name: encode_config(config) for name, config in schedulers.items()}
        self._write(canonical({"header": 1, "schedulers": header}))

    def write(self, now_s: float, scheduler: str, event: Event, commands: list[Command]) -> None:
        """Append one decision; nothing after `close` or a failure of the disk."""
        if not self._open:
            return
        line = {
            "now_s": now_s,
            "scheduler": scheduler,
            "event": encode_event(event),
            "commands": [encode_command(command) for command in commands],
        }
        self._write(canonical(line))

    def close(self) -> None:
        """Close. Idempotent."""
        self._open = False
        with contextlib.suppress(OSError):  # a network file system may report a failed write only here
            self._file.close()

    def _write(self, line: str) -> None:
        data = line.encode() + b"\n"
        if self._size_bytes + len(data) > self._max_bytes:
            self._open = False  # a later, shorter line would leave a gap
            return
        try:
            written = 0
            while written < len(data):  # the last bytes of a disk take part of a line
                written += self._file.write(data[written:])
        except OSError as error:
            log.warning("%s: no further events are logged: %s", self._path, error.strerror)
            with contextlib.suppress(OSError):
                self._file.truncate(self._size_bytes)  # whole lines only, they can still be replayed
            self.close()
        else:
            self._size_bytes += len(data)
