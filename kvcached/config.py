"""Settings from the environment: the only module of kvcached that reads it.

| variable | meaning | default |
|---|---|---|
| KVCACHED_ENABLE | 1 switches the SGLang plugin on | 0 |
| KVCACHED_LEDGER | file of the budget that this device's processes share | see :func:`default_ledger_path` |
| KVCACHED_BUDGET_BYTES | budget of the ledger | the ledger's; a new host one: half of MemAvailable |
| KVCACHED_NAME | this client's name in the ledger | pid-<pid> |
| KVCACHED_FLOOR_BYTES | guaranteed to this client | 0; engines: padding + one request of maximal length |
| KVCACHED_LIMIT_BYTES | most this client may hold | none |
| KVCACHED_PRIORITY | who is asked last to give memory back | 0 |
| KVCACHED_WARM_BYTES | most that is kept mapped ahead of need; 0: nothing | engines: a 16th of the budget |
| KVCACHED_PAGE_BYTES | widest stripe of one page | 64 KiB on the host, 2 MiB on CUDA |
| KVCACHED_PAGE_POLICY | page a request goes to: best_fit or most_filled | best_fit |
| KVCACHED_HOST_STRICT | 1: host rows without memory fault when touched | 0 |
| KVCACHED_LIBCUDA | path of the CUDA driver library | the system's libcuda.so.1 |

Sizes are bytes or have a unit: ``1048576``, ``256MiB``, ``1.5GiB``, ``2GB`` (binary with an i, decimal
without).
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from kvcached.errors import ConfigError
from kvcached.proc import mem_available_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST_BUDGET_SHARE = 0.5
"""Share of MemAvailable that a new host ledger gets when no budget is set; the rest is left to weights."""

FOLDER_REMEDY = (
    "set XDG_RUNTIME_DIR to a folder of your own with mode 0700, or KVCACHED_LEDGER to a file in one"
)
_SESSIONS = Path("/run/user")

PagePolicy = Literal["best_fit", "most_filled"]
PAGE_POLICIES: tuple[PagePolicy, ...] = get_args(PagePolicy)

NAME_MAX_BYTES = 47
_PRIORITY_LIMIT = 1 << 30
_PREFIX = "KVCACHED_"
_VARIABLES = frozenset(
    _PREFIX + name
    for name in (
        *("ENABLE", "LEDGER", "BUDGET_BYTES", "NAME", "FLOOR_BYTES"),
        *("LIMIT_BYTES", "PRIORITY", "WARM_BYTES", "PAGE_BYTES", "PAGE_POLICY", "HOST_STRICT", "LIBCUDA"),
    )
)
_UNITS: dict[str, int] = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("ib", 1024), ("b", 1000))
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Config:
    """One process's settings. None means: not set, the default of the place that uses it applies."""

    enabled: bool = False
    ledger_path: str | None = None
    budget_bytes: int | None = None
    name: str | None = None
    floor_bytes: int | None = None
    limit_bytes: int | None = None
    priority: int = 0
    warm_bytes: int | None = None
    page_bytes: int | None = None
    page_policy: PagePolicy = "best_fit"
    host_strict: bool = False
    libcuda: str | None = None

    @staticmethod
    def from_env(environ: Mapping[str, str] | None = None) -> Config:
        """Read and check every ``KVCACHED_*`` variable; an empty value counts as unset.

        Raises:
            ConfigError: an unknown variable (the nearest known one is named) or an impossible value.
        """
        env = os.environ if environ is None else environ
        given = {key: value.strip() for key, value in env.items() if key.startswith(_PREFIX)}
        _refuse_unknown(given)
        given = {key: value for key, value in given.items() if value}
        config = Config(
            enabled=_flag(given, "KVCACHED_ENABLE"),
            ledger_path=_path(given, "KVCACHED_LEDGER"),
            budget_bytes=_size(given, "KVCACHED_BUDGET_BYTES", least=1),
            name=_name(given, "KVCACHED_NAME"),
            floor_bytes=_size(given, "KVCACHED_FLOOR_BYTES", least=0),
            limit_bytes=_size(given, "KVCACHED_LIMIT_BYTES", least=1),
            priority=_integer(given, "KVCACHED_PRIORITY"),
            warm_bytes=_size(given, "KVCACHED_WARM_BYTES", least=0),
            page_bytes=_size(given, "KVCACHED_PAGE_BYTES", least=4096),
            page_policy=_page_policy(given, "KVCACHED_PAGE_POLICY"),
            host_strict=_flag(given, "KVCACHED_HOST_STRICT"),
            libcuda=_path(given, "KVCACHED_LIBCUDA"),
        )
        if config.limit_bytes is not None and (config.floor_bytes or 0) > config.limit_bytes:
            raise ConfigError(
                f"KVCACHED_FLOOR_BYTES={config.floor_bytes} is above "
                f"KVCACHED_LIMIT_BYTES={config.limit_bytes}: lower the floor or raise the limit"
            )
        return config


def parse_size_bytes(text: str) -> int:
    """``"256MiB"`` -> 268435456. Raises ValueError that says which forms are understood."""
    match = _SIZE.fullmatch(text.strip())
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in _UNITS:
        raise ValueError(
            "write bytes or a number with B, KiB, MiB, GiB, TiB, KB, MB, GB or TB, such as 256MiB"
        )
    number = match.group(1)
    if "." not in number:
        return int(number) * _UNITS[unit]
    nbytes = float(number) * _UNITS[unit]
    if not nbytes.is_integer():
        raise ValueError("the size is not a whole number of bytes")
    return int(nbytes)


def ledger_dir() -> Path:
    """Where ledgers live by default.

    ``$XDG_RUNTIME_DIR/kvcached``, else ``/run/user/<uid>/kvcached`` where that folder is ours, else
    ``<tempdir>/kvcached-<uid>``, a name that another user may have taken first: `refuse_foreign_dir` says so.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "kvcached"
    session = _SESSIONS / str(os.getuid())
    if session.is_dir() and session.stat().st_uid == os.getuid():
        return session / "kvcached"
    return Path(tempfile.gettempdir()) / f"kvcached-{os.getuid()}"


def refuse_foreign_dir(folder: Path) -> None:
    """ConfigError, with the remedy, where the ledgers' default folder is there and not this user's."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ConfigError(
            f"{folder} is no folder of user {os.getuid()}, its owner is user {status.st_uid}: {FOLDER_REMEDY}"
        )


def default_ledger_path(device: str) -> str:
    """The shared ledger of one device (``host0``, ``cuda0``) for this user."""
    return str(ledger_dir() / f"{device}.ledger")


def default_host_budget_bytes() -> int:
    """Budget of a new host ledger when none is set: :data:`HOST_BUDGET_SHARE` of MemAvailable now."""
    return int(mem_available_bytes() * HOST_BUDGET_SHARE)


# ---- one parser per kind of value --------------------------------------------------------------------------


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for variable in sorted(given):
        if variable not in _VARIABLES:
            names = sorted(known.removeprefix(_PREFIX) for known in _VARIABLES)
            nearest = difflib.get_close_matches(variable.removeprefix(_PREFIX), names, n=1)
            hint = (
                f"did you mean {_PREFIX}{nearest[0]}? Else"
                if nearest
                else f"known are {', '.join(sorted(_VARIABLES))};"
            )
            raise ConfigError(f"{variable}={given[variable]!r} is no setting of kvcached: {hint} unset it")


def _flag(given: Mapping[str, str], variable: str) -> bool:
    value = given.get(variable, "0")
    if value not in ("0", "1"):
        raise ConfigError(f"{variable}={value!r} is neither 0 nor 1: set 1 for on, 0 (or nothing) for off")
    return value == "1"


def _size(given: Mapping[str, str], variable: str, *, least: int) -> int | None:
    value = given.get(variable)
    if value is None:
        return None
    try:
        nbytes = parse_size_bytes(value)
    except ValueError as error:
        raise ConfigError(f"{variable}={value!r} is not a size: {error}") from error
    if not least <= nbytes < 1 << 62:
        raise ConfigError(f"{variable}={value!r} is out of range: set {least} bytes or more, below 4 EiB")
    return nbytes


def _integer(given: Mapping[str, str], variable: str) -> int:
    value = given.get(variable, "0")
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", value) or abs(int(value)) >= _PRIORITY_LIMIT:
        raise ConfigError(
            f"{variable}={value!r} is not an integer below 2^30 in size: set one such as 0, 10 or -5"
        )
    return int(value)


def _name(given: Mapping[str, str], variable: str) -> str | None:
    value = given.get(variable)
    if value is None:
        return None
    if len(value.encode()) > NAME_MAX_BYTES or not value.isprintable():
        raise ConfigError(
            f"{variable}={value!r} is no usable name: set at most {NAME_MAX_BYTES} printable bytes of UTF-8"
        )
    return value


def _page_policy(given: Mapping[str, str], variable: str) -> PagePolicy:
    value = given.get(variable, "best_fit")
    for policy in PAGE_POLICIES:
        if value == policy:
            return policy
    raise ConfigError(f"{variable}={value!r} is no page policy: set {' or '.join(PAGE_POLICIES)}")


def _path(given: Mapping[str, str], variable: str) -> str | None:
    value = given.get(variable)
    if value is None:
        return None
    if not Path(value).is_absolute():
        raise ConfigError(
            f"{variable}={value!r} is a relative path: processes differ in their folder, set an absolute one"
        )
    return value
