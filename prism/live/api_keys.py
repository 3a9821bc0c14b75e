"""Reading the API key file: one key per line, `#` comments; readable by its owner only."""

from __future__ import annotations

import stat
from pathlib import Path

_MAX_BYTES = 64 * 2**10
_MIN_KEY_BYTES = 8


class ApiKeyError(RuntimeError):
    """The key file cannot be used; the message says why, never what is in it."""


def load_api_keys(path: str | None) -> tuple[bytes, ...]:
    """The keys; none when no file is configured; raises `ApiKeyError`."""
    if path is None:
        return ()
    file = Path(path)
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        data = file.read_bytes() if file.stat().st_size <= _MAX_BYTES else None
    except OSError as error:
        raise ApiKeyError(f"server.api_key_file {file} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise ApiKeyError(
            f"server.api_key_file {file} is open to others (mode {mode:o}); run: chmod 600 {file}"
        )
    if data is None:
        raise ApiKeyError(
            f"server.api_key_file {file} is larger than {_MAX_BYTES} bytes; is it the right file?"
        )
    lines = (line.strip() for line in data.splitlines())
    keys = tuple(line for line in lines if line and not line.startswith(b"#"))
    if not keys:
        raise ApiKeyError(f"server.api_key_file {file} holds no key; write one per line")
    if any(len(key) < _MIN_KEY_BYTES for key in keys):
        raise ApiKeyError(
            f"server.api_key_file {file}: a key has fewer than {_MIN_KEY_BYTES} bytes; use longer ones"
        )
    return keys
