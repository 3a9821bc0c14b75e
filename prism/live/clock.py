"""The live shell's clock: seconds since the service started, monotonic."""

from __future__ import annotations

import time


class Clock:
    """Starts at zero when made. The schedulers see no other time."""

    def __init__(self) -> None:
        self._zero_s = time.monotonic()
        self.started_unix_s = int(time.time())

    def now_s(self) -> float:
        """Seconds since the clock was made; never goes back."""
        return time.monotonic() - self._zero_s
