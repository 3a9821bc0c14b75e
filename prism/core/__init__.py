"""Decisions only: events in, commands out, time as an argument. No clock, no I/O, no randomness."""

from prism.core.global_ import GlobalScheduler
from prism.core.local import LocalScheduler

__all__ = ["GlobalScheduler", "LocalScheduler"]
