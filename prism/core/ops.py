"""Ids for commands: deterministic, unique among the schedulers of a process."""

from dataclasses import dataclass


@dataclass(slots=True)
class OpIds:
    """`<owner>-1`, `<owner>-2`, … The owner is the device's name, or "global"."""

    owner: str
    _last: int = 0

    def next(self) -> str:
        """A fresh id."""
        self._last += 1
        return f"{self.owner}-{self._last}"
