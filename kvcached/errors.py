"""All errors of kvcached, one small tree.

::

    KvcachedError
    ├── OutOfMemory (also MemoryError)   credit or physical memory refused; recoverable, state unchanged
    ├── Unavailable                      a backend cannot be used on this machine
    ├── DriverError                      a driver or kernel call failed: call, code, name, arguments
    ├── Misuse (also ValueError)         double free, foreign row, impossible geometry, unsafe ledger file ...
    ├── LedgerRefused                    the guaranteed floors would exceed the budget
    └── ConfigError (also ValueError)    an environment setting is wrong

The first five are raised by the compiled core. Messages name the value, the limit and the remedy.
"""

from __future__ import annotations

from kvcached._core import DriverError, KvcachedError, LedgerRefused, Misuse, OutOfMemory, Unavailable

__all__ = [
    "ConfigError",
    "DriverError",
    "KvcachedError",
    "LedgerRefused",
    "Misuse",
    "OutOfMemory",
    "Unavailable",
]


class ConfigError(KvcachedError, ValueError):
    """A ``KVCACHED_*`` setting is unknown or has an impossible value."""
