"""The folder one prism owns while it runs: lock, ledgers, engine folders, logs.

Leftovers of a killed one go first.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from prism.live.guest_files import kill_leftovers, load_record, remove_files

_LOCK_NAME = "lock"
_ENGINES_NAME = "engines"
_LOGS_NAME = "logs"
_MAX_SOCKET_PATH_BYTES = 107  # sun_path without its terminating zero
_SOCKET_NAME_BYTES = (
    len("/engines/255/tmp/") + 32
)  # SGLang puts ipc:// sockets of short random names in TMPDIR
_LOCK_ATTEMPTS = 100

log = logging.getLogger("prism.runtime")


class RuntimeDirError(RuntimeError):
    """The folder cannot be used; the message names it and says what would help."""


@dataclass(slots=True)
class RuntimeDir:
    """A locked folder, made by `open_runtime_dir`.

    `close` removes everything of ours in it, and itself if it was made here.
    """

    path: Path
    log_dir: Path
    made_here: bool
    _lock_fd: int

    def ledger_path(self, device: str) -> Path:
        """Ledger file of the device."""
        return self.path / f"{device}.ledger"

    def log_path(self, model: str) -> Path:
        """Log file of the model's engine."""
        return self.log_dir / (model.replace("/", "--") + ".log")

    def engine_dir(self, index: int) -> Path:
        """A fresh, private folder for engine number `index`, with its TMPDIR inside."""
        folder = self.path / _ENGINES_NAME / str(index)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        (folder / "tmp").mkdir(mode=0o700)
        return folder

    def close(self) -> None:
        """Remove what is ours (not a configured log folder) and give the lock up."""
        for name in (_ENGINES_NAME, _LOGS_NAME):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for ledger in self.path.glob("*.ledger*"):
            ledger.unlink(missing_ok=True)
        (self.path / _LOCK_NAME).unlink(missing_ok=True)
        os.close(self._lock_fd)
        if self.made_here:
            with contextlib.suppress(OSError):  # another prism may have moved in already
                self.path.rmdir()


def default_runtime_dir(environ: dict[str, str] | None = None) -> Path:
    """$XDG_RUNTIME_DIR/prism, else <tmp>/prism-<uid>."""
    base = (os.environ if environ is None else environ).get("XDG_RUNTIME_DIR")
    if base and Path(base).is_dir():
        return Path(base) / "prism"
    return Path(tempfile.gettempdir()) / f"prism-{os.getuid()}"


def open_runtime_dir(configured: str | None, log_dir: str | None) -> RuntimeDir:
    """Make, check and lock the folder, then clean up what a killed prism left; raises `RuntimeDirError`."""
    path = Path(configured) if configured else default_runtime_dir()
    path = path.absolute()
    if len(os.fsencode(path)) + _SOCKET_NAME_BYTES > _MAX_SOCKET_PATH_BYTES:
        raise RuntimeDirError(
            f"runtime_dir {path} is too long: socket names beneath it would pass "
            f"{_MAX_SOCKET_PATH_BYTES} bytes; "
            f"use at most {_MAX_SOCKET_PATH_BYTES - _SOCKET_NAME_BYTES} bytes"
        )
    made_here = _make_private(path)
    lock_fd = _lock(path)
    if not path.is_dir():  # its last owner removed it after we looked
        os.close(lock_fd)
        raise RuntimeDirError(f"runtime_dir {path} vanished while starting; start again")
    _clean_leftovers(path)
    logs = Path(log_dir) if log_dir else path / _LOGS_NAME
    try:
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        os.close(lock_fd)
        raise RuntimeDirError(f"log_dir {logs} cannot be made: {error.strerror}") from error
    return RuntimeDir(path=path, log_dir=logs, made_here=made_here or configured is None, _lock_fd=lock_fd)


def _make_private(path: Path) -> bool:
    """Ensure a folder of ours that nobody else can enter; True when it was made now."""
    made = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
        made = True
    except FileExistsError:
        pass
    except OSError as error:
        raise RuntimeDirError(f"runtime_dir {path} cannot be made: {error.strerror}") from error
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise RuntimeDirError(f"runtime_dir {path} is no folder; remove it or set another runtime_dir")
    if status.st_uid != os.getuid():
        raise RuntimeDirError(f"runtime_dir {path} belongs to user {status.st_uid}; set another runtime_dir")
    if stat.S_IMODE(status.st_mode) & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise RuntimeDirError(f"runtime_dir {path} is open to others (mode {mode:o}); run: chmod 700 {path}")
    return made


def _lock(path: Path) -> int:
    """Hold the lock file; a holder removes it at its end, so make sure that what we hold is what is there."""
    lock = path / _LOCK_NAME
    for _ in range(_LOCK_ATTEMPTS):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise RuntimeDirError(
                f"runtime_dir {path}: cannot make the lock file: {error.strerror}"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held, there = os.fstat(descriptor), lock.stat()
        except BlockingIOError:
            os.close(descriptor)
            raise RuntimeDirError(
                f"runtime_dir {path} is used by another prism; stop that one or set another runtime_dir"
            ) from None
        except FileNotFoundError:
            os.close(descriptor)
            continue
        if (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino):
            return descriptor
        os.close(descriptor)
    raise RuntimeDirError(
        f"runtime_dir {path}: the lock file keeps changing; is another prism restarting in a loop?"
    )


def _clean_leftovers(path: Path) -> None:
    engines = path / _ENGINES_NAME
    if not engines.is_dir():
        return
    for folder in sorted(engines.iterdir()):
        record = load_record(folder)
        if record is None:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        killed = kill_leftovers(record)
        removed = remove_files(record)
        log.warning("cleaned up after a killed prism: %d processes, %s", killed, ", ".join(removed))
