"""Counts the system calls of a child process between two marks, from outside, with ptrace.

The child marks begin and end by closing file descriptors that cannot exist. All its threads are followed.
"""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

BEGIN_FD, END_FD = 2_000_000_011, 2_000_000_033
"""Beyond what a process may have open: closing one fails, and does nothing but be seen."""

_SEIZE, _INTERRUPT, _RUN_TO_SYSCALL, _GET_SYSCALL_INFO = 0x4206, 0x4207, 24, 0x420E
_OPTIONS = (
    0x1 | 0x8 | 0x100000
)  # tell stops at system calls apart, follow new threads, kill the child with us
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_ENTRY = 1
_WAIT_FOR_THREADS_TOO = 0x40000000
_READY = b"r"


class _SyscallInfo(ctypes.Structure):
    """`struct ptrace_syscall_info` as far as an entry goes."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("padding", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("instruction_pointer", ctypes.c_uint64),
        ("stack_pointer", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


def mark(descriptor: int) -> None:
    """In the child: BEGIN_FD or END_FD."""
    try:
        os.close(descriptor)
    except OSError:
        return
    raise RuntimeError(f"file descriptor {descriptor} was open")


def wait_for_tracer() -> None:
    """In the child, once set up: say so and go on when the tracer is attached."""
    os.write(1, _READY)
    os.read(0, 1)


def count_syscalls(arguments: list[str], timeout_s: float) -> int:
    """System calls that all threads of `python *arguments` make between the marks.

    Raises OSError where the kernel forbids tracing, RuntimeError for a child that does not get to its end
    mark, TimeoutError for one that takes too long.
    """
    child = subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    previous = signal.signal(signal.SIGALRM, _too_late)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        _attach(child)
        return _count(child.pid)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        child.kill()
        while child.poll() is None:
            os.waitpid(-1, _WAIT_FOR_THREADS_TOO)  # its threads have to go before it is reported as gone
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def _attach(child: subprocess.Popen[bytes]) -> None:
    """Follow every thread; the child goes on once each is back in the call that attaching interrupted."""
    if child.stdin is None or child.stdout is None or child.stdout.read(1) != _READY:
        raise RuntimeError(f"the traced child ended before it was ready: {child.args!r}")
    interrupted = {int(thread.name) for thread in Path(f"/proc/{child.pid}/task").iterdir()}
    for thread in interrupted:
        _ptrace(_SEIZE, thread, 0, _OPTIONS)
        _ptrace(_INTERRUPT, thread)
    while interrupted:
        thread, call = _next_stop(child.pid)
        if call is not None:
            interrupted.discard(thread)
        _ptrace(_RUN_TO_SYSCALL, thread)
    child.stdin.write(b"g")


def _count(pid: int) -> int:
    """Let every thread run from stop to stop until the end mark."""
    counting, calls = False, 0
    while True:
        thread, call = _next_stop(pid)
        if call is not None and call.arguments[0] == END_FD:
            return calls
        if call is not None:
            calls += counting
            counting |= call.arguments[0] == BEGIN_FD
        _ptrace(_RUN_TO_SYSCALL, thread)


def _next_stop(pid: int) -> tuple[int, _SyscallInfo | None]:
    """The next thread that stopped, and the call it is about to make if that is why."""
    while True:
        thread, status = os.waitpid(-1, _WAIT_FOR_THREADS_TOO)
        if os.WIFSTOPPED(status):
            break
        if thread == pid:
            raise RuntimeError(f"the traced child ended before its end mark, wait status {status}")
    if os.WSTOPSIG(status) != _SYSCALL_STOP:
        return thread, None
    info = _SyscallInfo()
    _ptrace(_GET_SYSCALL_INFO, thread, ctypes.sizeof(info), ctypes.addressof(info))
    return thread, info if info.op == _ENTRY else None


def _ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> None:
    if _libc.ptrace(request, thread, address, data) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace request {request:#x} on thread {thread}: {os.strerror(number)}")


def _too_late(number: int, frame: object) -> NoReturn:
    raise TimeoutError("the traced child did not reach its end mark in time")
