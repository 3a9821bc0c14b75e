"""The checks behind ``kvctl doctor``: each looks at one thing and says what it saw and what would mend it."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import kvcached_sglang_plugin as plugin
from kvcached import proc
from kvcached._core import Backend, VirtualRange, build_info
from kvcached.backends import cuda_unavailable_reason
from kvcached.config import FOLDER_REMEDY, Config, ledger_dir
from kvcached.errors import KvcachedError
from kvcached.ledgers import SUFFIX, find_ledgers
from kvcached.stats import read_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SCHEDULER_TITLE = "sglang::scheduler"
_LATER_RANK = re.compile(r"_TP[1-9]")
_PLUGIN_GROUP = "sglang.srt.plugins"
_STRICT_PROBE = (
    "import ctypes; from kvcached._core import Backend, VirtualRange; "
    "page = Backend.host(True).capabilities.default_page_bytes; "
    "r = VirtualRange(Backend.host(True), 2 * page, page); r.map(0, page); "
    "ctypes.c_char.from_address(r.base_address).value; print('backed', flush=True); "
    "ctypes.c_char.from_address(r.base_address + page).value; print('unbacked', flush=True)"
)


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found; only ``fail`` makes ``kvctl doctor`` exit with 1."""

    name: str
    status: Literal["ok", "note", "warn", "fail"]
    detail: str
    remedy: str | None = None


def examine(paths: list[str] | None) -> list[Check]:
    """All checks; without paths, those of the default folder and of all ledgers in it."""
    ledger_paths = paths or _default_ledgers()
    checks = [
        _guarded("ownership", _ownership),
        _guarded("core", _core),
        _guarded("settings", _settings),
        _guarded("plugin", _plugin),
        _guarded("host backend", _host_backend),
        _guarded("host backend, strict", _host_strict),
        _guarded("CUDA backend", _cuda_backend),
    ]
    if not paths:
        checks.append(_guarded("ledger folder", partial(_folder, ledger_dir())))
    checks += [_guarded(f"ledger {path}", partial(_ledger, path)) for path in ledger_paths]
    checks += _cut_off(ledger_paths)
    return checks + _schedulers(ledger_paths)


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """A check that blows up is itself a finding."""
    try:
        return check()
    except (KvcachedError, OSError, ValueError) as error:
        return Check(name, "fail", f"{type(error).__name__}: {error}")


# ---- installation ------------------------------------------------------------------------------------------


def _ownership() -> Check:
    conflict = plugin.find_conflict()
    if conflict is not None:
        return Check("ownership", "fail", conflict.reason, conflict.remedy)
    return Check("ownership", "ok", f"the import package kvcached is ours ({Path(__file__).parent})")


def _core() -> Check:
    facts = ", ".join(f"{key} {value}" for key, value in sorted(build_info().items()))
    return Check("core", "ok", facts)


def _settings() -> Check:
    Config.from_env()
    return Check("settings", "ok", "every KVCACHED_* variable of this shell is understood")


def _plugin() -> Check:
    expected = "kvcached_sglang_plugin:activate"
    if any(entry.value == expected for entry in metadata.entry_points(group=_PLUGIN_GROUP)):
        return Check("plugin", "ok", f"SGLang in this environment finds {expected}")
    return Check(
        "plugin",
        "fail",
        f"no entry point {expected} in group {_PLUGIN_GROUP}: SGLang here would run without kvcached",
        f"install the package ({plugin.DISTRIBUTION}) instead of running from a source tree",
    )


# ---- machine -----------------------------------------------------------------------------------------------


def _host_backend() -> Check:
    backend = Backend.host()
    page = backend.capabilities.default_page_bytes
    memory = VirtualRange(backend, 16 * page, page)
    try:
        seen = [proc.rss_bytes(os.getpid(), memory.base_address, memory.nbytes)]
        memory.map(0, 4 * page)
        seen.append(proc.rss_bytes(os.getpid(), memory.base_address, memory.nbytes))
        memory.unmap(0, 4 * page)
        seen.append(proc.rss_bytes(os.getpid(), memory.base_address, memory.nbytes))
    finally:
        memory.close()
    if seen != [0, 4 * page, 0]:
        return Check(
            "host backend",
            "fail",
            f"resident bytes before, with and after {4 * page} mapped bytes are {seen}",
            "report this with the kernel's version; elastic memory does not work here",
        )
    return Check("host backend", "ok", f"pages of {page} bytes come and go as the kernel reports it")


def _host_strict() -> Check:
    name = "host backend, strict"
    probe = subprocess.run(
        [sys.executable, "-X", "faulthandler=0", "-c", _STRICT_PROBE],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if probe.returncode == -signal.SIGSEGV and probe.stdout.split() == ["backed"]:
        return Check(name, "ok", "touching a row without memory faults")
    return Check(
        name,
        "fail",
        f"a probe that touches memory it does not have ended with code {probe.returncode} after printing "
        f"{probe.stdout.split()}: {probe.stderr.strip()[-300:]}",
        "do not rely on KVCACHED_HOST_STRICT=1 here",
    )


def _cuda_backend() -> Check:
    reason = cuda_unavailable_reason()
    if reason is None:
        return Check("CUDA backend", "ok", "usable")
    return Check("CUDA backend", "note", f"not usable: {reason}")


# ---- ledgers -----------------------------------------------------------------------------------------------


def _default_ledgers() -> list[str]:
    try:
        return find_ledgers()
    except (KvcachedError, OSError):
        return []  # the check of the folder says why


def _folder(directory: Path) -> Check:
    try:
        status = directory.lstat()
    except FileNotFoundError:
        return Check("ledger folder", "note", f"{directory} does not exist yet; the first process creates it")
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.getuid() or mode & 0o077:
        return Check(
            "ledger folder",
            "fail",
            f"{directory} has owner {status.st_uid} and mode {mode:04o}: budgets are open to other users",
            FOLDER_REMEDY if status.st_uid != os.getuid() else f"chmod 700 {directory}, or {FOLDER_REMEDY}",
        )
    return Check("ledger folder", "ok", f"{directory}, mode {mode:04o}")


def _ledger(path: str) -> Check:
    name = f"ledger {path}"
    ledger = read_ledger(path)
    if not ledger.clients:
        return Check(
            name,
            "warn",
            "stale: no living process uses it",
            "if nothing is about to start, remove it: kvctl clean",
        )
    detail = f"{len(ledger.clients)} clients hold {ledger.used_bytes} of {ledger.budget_bytes} bytes"
    over = [client.name for client in ledger.clients if (client.mapped_bytes or 0) > client.used_bytes]
    if over:
        return Check(
            name,
            "warn",
            f"{detail}; the kernel reports more memory than credit for {', '.join(over)}",
            "look again, credit and memory change at different instants; if it stays, something touches "
            "rows it has not allocated",
        )
    return Check(name, "ok", detail)


def _cut_off(ledger_paths: list[str]) -> list[Check]:
    """One check for each process that still uses a ledger whose file was deleted or replaced."""
    return [
        Check(
            f"ledger {path}, pid {pid}",
            "warn",
            f"process {pid} uses a file that was deleted or replaced: what it holds counts in no budget that "
            "engines started since then can see, and together they may exceed the device",
            "restart that process; never delete ledgers by hand, use kvctl clean",
        )
        for pid, path in proc.deleted_mappings(SUFFIX, ledger_paths)
    ]


# ---- engines -----------------------------------------------------------------------------------------------


def _schedulers(ledger_paths: Iterable[str]) -> list[Check]:
    """One check for each of this user's SGLang schedulers: is it a client of some ledger, and if not, why?"""
    schedulers = proc.processes(_SCHEDULER_TITLE)
    if not schedulers:
        return [Check("SGLang engines", "note", "no scheduler process of this user is running")]
    environments = {scheduler.pid: _environment(scheduler) for scheduler in schedulers}
    named = (environment.get("KVCACHED_LEDGER") for environment in environments.values())
    paths = {*ledger_paths, *_default_ledgers(), *(path for path in named if path)}
    clients = _client_pids(paths)
    # A tensor-parallel group is one client: rank 0 answers for the ranks that the same launcher started.
    groups = {scheduler.parent_pid for scheduler in schedulers if scheduler.pid in clients}
    return [
        _scheduler(
            scheduler, scheduler.pid in clients, scheduler.parent_pid in groups, environments[scheduler.pid]
        )
        for scheduler in schedulers
    ]


def _scheduler(
    scheduler: proc.Process, registered: bool, in_group: bool, environment: dict[str, str]
) -> Check:
    name = f"SGLang engine, pid {scheduler.pid}"
    if registered:
        return Check(name, "ok", f"{scheduler.title} is a client of a ledger")
    if in_group and _LATER_RANK.search(scheduler.title):
        return Check(
            name, "ok", f"{scheduler.title} belongs to a group whose first rank is a client of a ledger"
        )
    reason, remedy = _why_not(environment)
    return Check(name, "fail", f"{scheduler.title} runs WITHOUT kvcached: {reason}", remedy)


def _why_not(environment: dict[str, str]) -> tuple[str, str]:
    """Why a scheduler with this environment is no client, as far as one can tell from outside; the remedy."""
    if not environment:
        return (
            "its environment cannot be read",
            "restart it with KVCACHED_ENABLE=1 from an environment where `kvctl doctor` is healthy",
        )
    enabled = environment.get("KVCACHED_ENABLE", "")
    if enabled != "1":
        return f"KVCACHED_ENABLE is {enabled!r} there", "restart it with KVCACHED_ENABLE=1"
    allowed = environment.get("SGLANG_PLUGINS")
    if allowed and "kvcached" not in {name.strip() for name in allowed.split(",")}:
        return (
            f"SGLANG_PLUGINS={allowed} leaves kvcached out",
            "add kvcached to SGLANG_PLUGINS, or unset it, and restart",
        )
    reason = (
        "KVCACHED_ENABLE=1 is set, yet it is in no ledger known here: the plugin is not installed in its "
        "Python environment, it is still starting, or its ledger lies elsewhere"
    )
    return reason, "pass its ledger with --ledger, or install the package there and restart it"


def _environment(scheduler: proc.Process) -> dict[str, str]:
    """A scheduler's environment, or its launcher's: the new process title usually overwrites the former."""
    for pid in (scheduler.pid, scheduler.parent_pid):
        try:
            environment = proc.environment(pid)
        except (ProcessLookupError, PermissionError):
            continue
        if "PATH" in environment or "KVCACHED_ENABLE" in environment:
            return environment
    return {}


def _client_pids(paths: Iterable[str]) -> set[int]:
    pids: set[int] = set()
    for path in paths:
        try:
            pids |= {client.pid for client in read_ledger(path).clients}
        except (KvcachedError, OSError):
            continue  # an unreadable ledger among those asked for has its own failed check
    return pids
