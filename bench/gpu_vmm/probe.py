"""One question to a CUDA device, asked in a process of its own: a probe may kill its context.

`python bench/gpu_vmm/probe.py NAME LIBRARY ROUNDS` prints the figures as one JSON object, or
`{"skip": "reason"}` where this machine cannot answer.
"""

import ctypes
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(ROOT))

# ruff: noqa: E402 - the line above has to come first
from bench.gpu_vmm.device import OUT_OF_MEMORY, CallFailed, Device

GIB = 1 << 30
RUN = 32
"""Pages of a run: what a batch of requests takes at once."""
SPIN_NS = 200_000_000

SPIN_PTX = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 target, .param .u64 duration_ns)
{
  .reg .pred %more;
  .reg .b32 %count;
  .reg .b64 %at, %global, %duration, %start, %now, %spent;
  ld.param.u64 %at, [target];
  ld.param.u64 %duration, [duration_ns];
  cvta.to.global.u64 %global, %at;
  mov.u64 %start, %globaltimer;
LOOP:
  ld.volatile.global.u32 %count, [%global];
  add.u32 %count, %count, 1;
  st.volatile.global.u32 [%global], %count;
  mov.u64 %now, %globaltimer;
  sub.u64 %spent, %now, %start;
  setp.lt.u64 %more, %spent, %duration;
  @%more bra LOOP;
  ret;
}
"""

Figures = dict[str, float]


class Skipped(Exception):
    """This machine cannot answer."""


def timed_us(action: Callable[[], object]) -> float:
    """How long one call takes."""
    started_ns = time.perf_counter_ns()
    action()
    return (time.perf_counter_ns() - started_ns) / 1e3


def latency(device: Device, rounds: int) -> Figures:
    """Each verb alone, on single pages and on runs."""
    page = device.granularity_bytes()
    taken: dict[str, list[float]] = {}

    def note(verb: str, action: Callable[[], object]) -> None:
        taken.setdefault(verb, []).append(timed_us(action))

    base = device.reserve(RUN * page)
    handle_box = [0]
    for _ in range(rounds):
        note(
            "call", lambda: device.attempt("cuGetErrorName", ctypes.c_int(0), ctypes.byref(ctypes.c_char_p()))
        )
        note("mem_get_info", device.free_bytes)
        note("create", lambda: handle_box.__setitem__(0, device.create(page)))
        note("map", lambda: device.map(base, page, handle_box[0]))
        note("set_access", lambda: device.set_access(base, page))
        note("unmap", lambda: device.unmap(base, page))
        note("remap_recycled", lambda: _cycle(device, base, page, handle_box[0]))
        note("release", lambda: device.release(handle_box[0]))
    handles = [device.create(page) for _ in range(RUN)]
    for _ in range(max(1, rounds // 8)):
        for index, handle in enumerate(handles):
            device.map(base + index * page, page, handle)
        note("set_access_run", lambda: device.set_access(base, RUN * page))
        started_ns = time.perf_counter_ns()
        for index in range(RUN):
            device.unmap(base + index * page, page)
        taken.setdefault("unmap_run", []).append((time.perf_counter_ns() - started_ns) / 1e3)
    for handle in handles:
        device.release(handle)
    device.free(base, RUN * page)
    figures = {f"{verb}_us": round(statistics.median(values), 2) for verb, values in taken.items()}
    bases: list[int] = []
    figures["reserve_64g_us"] = round(timed_us(lambda: bases.append(device.reserve(64 * GIB))), 1)
    figures["address_free_64g_us"] = round(timed_us(lambda: device.free(bases[0], 64 * GIB)), 1)
    fresh_us = sum(figures[f"{verb}_us"] for verb in ("create", "map", "set_access", "unmap", "release"))
    figures["recycling_speedup"] = round(fresh_us / figures["remap_recycled_us"], 2)
    return figures


def _cycle(device: Device, at: int, page: int, handle: int) -> None:
    device.map(at, page, handle)
    device.set_access(at, page)
    device.unmap(at, page)


def rules(device: Device, rounds: int) -> Figures:
    """What the driver allows, documented or not: 1 allowed, 0 refused."""
    page = device.granularity_bytes()
    base = device.reserve(RUN * page)
    handles = [device.create(page) for _ in range(RUN)]
    double = device.create(2 * page)

    def is_allowed(action: Callable[[], object]) -> int:
        try:
            action()
        except CallFailed:
            return 0
        return 1

    figures: Figures = {
        "granularity_bytes": page,
        "granularity_recommended_bytes": device.granularity_bytes(recommended=True),
    }
    for index, handle in enumerate(handles):
        device.map(base + index * page, page, handle)
    figures["unmap_many_allowed"] = is_allowed(lambda: device.unmap(base, RUN * page))
    if figures["unmap_many_allowed"]:
        durations = []
        for _ in range(max(1, rounds // 8)):
            for index, handle in enumerate(handles):
                device.map(base + index * page, page, handle)
            device.set_access(base, RUN * page)
            durations.append(timed_us(lambda: device.unmap(base, RUN * page)))
        figures["unmap_many_us"] = round(statistics.median(durations), 2)
    else:
        for index in range(RUN):
            device.unmap(base + index * page, page)
    device.map(base, 2 * page, double)
    figures["unmap_part_allowed"] = is_allowed(lambda: device.unmap(base, page))
    figures["set_access_over_hole_allowed"] = is_allowed(lambda: device.set_access(base, 3 * page))
    figures["map_offset_allowed"] = is_allowed(lambda: device.map(base + 8 * page, page, double, offset=page))
    figures["map_twice_allowed"] = is_allowed(lambda: device.map(base + 16 * page, 2 * page, double))
    return figures  # what is mapped now depends on the answers; it goes with the process


def kernels_in_flight(device: Device, rounds: int) -> Figures:
    """Whether changing one page waits for a kernel that works on another."""
    kernel, page, base, handles = _spinning(device)
    verbs: dict[str, Callable[[], object]] = {
        "map": lambda: device.map(base + page, page, handles[1]),
        "set_access": lambda: device.set_access(base + page, page),
        "unmap": lambda: device.unmap(base + page, page),
    }
    taken: dict[str, list[float]] = {}
    for _ in range(max(1, min(8, rounds // 8))):
        for state in ("idle", "busy"):
            for verb, action in verbs.items():
                if state == "busy":
                    device.launch(kernel, base, SPIN_NS)
                taken.setdefault(f"{verb}_{state}_us", []).append(timed_us(action))
                if device.synchronize() != 0:
                    raise RuntimeError("a kernel failed that touches only memory which stayed mapped")
    return {key: round(statistics.median(values), 2) for key, values in taken.items()} | {
        "spin_ms": SPIN_NS / 1e6
    }


def unmap_in_use(device: Device, _rounds: int) -> Figures:
    """What happens when the page that a kernel works on is unmapped: the call's code, and the context's."""
    kernel, page, base, _ = _spinning(device)
    device.launch(kernel, base, SPIN_NS)
    started_s = time.perf_counter()
    code = device.attempt("cuMemUnmap", ctypes.c_uint64(base), ctypes.c_size_t(page))
    waited_ms = (time.perf_counter() - started_s) * 1e3
    return {
        "unmap_in_use_code": code,
        "unmap_in_use_ms": round(waited_ms, 2),
        "context_after_unmap_in_use_code": device.synchronize(),
    }


def _spinning(device: Device) -> tuple[ctypes.c_void_p, int, int, list[int]]:
    """A kernel that works on the first of two pages, only that one mapped."""
    if not device.has("cuModuleLoadData", "cuLaunchKernel", "cuCtxSynchronize"):
        raise Skipped("this driver library runs no kernels")
    page = device.granularity_bytes()
    base = device.reserve(2 * page)
    handles = [device.create(page) for _ in range(2)]
    device.map(base, page, handles[0])
    device.set_access(base, page)
    device.write(base, bytes(4))
    return device.load_kernel(SPIN_PTX, "spin"), page, base, handles


def out_of_memory(device: Device, _rounds: int) -> Figures:
    """Filling the device: the code at its end, and whether everything comes back."""
    page = device.granularity_bytes()
    before_bytes = device.free_bytes()
    size = max(page, before_bytes // 64 // page * page)
    handles: list[int] = []
    code = 0
    while code == 0:
        try:
            handles.append(device.create(size))
        except CallFailed as failure:
            code = failure.code
            if size > page:  # refused in large pieces: is it in small ones?
                code, size = 0, page
    taken_bytes = before_bytes - device.free_bytes()
    for handle in handles:
        device.release(handle)
    device.release(device.create(page))
    return {
        "oom_code": code,
        "oom_is_clean": int(code == OUT_OF_MEMORY),
        "oom_taken_share": round(taken_bytes / before_bytes, 4),
        "oom_missing_bytes": before_bytes - device.free_bytes(),
    }


def kill9(device: Device, rounds: int) -> Figures:
    """How long the memory of a killed process stays away."""
    page = device.granularity_bytes()
    before_bytes = device.free_bytes()
    nbytes = before_bytes // 8 // page * page
    durations_ms = []
    for _ in range(2 if rounds < 64 else 5):
        holder = subprocess.Popen(
            [sys.executable, __file__, "hold", sys.argv[2], str(nbytes)], stdout=subprocess.PIPE, text=True
        )
        try:
            if holder.stdout is None or holder.stdout.readline() != "held\n":
                raise RuntimeError("the process that was to hold memory could not")
        finally:
            holder.send_signal(signal.SIGKILL)
            started_s = time.perf_counter()
            holder.wait()
        while device.free_bytes() < before_bytes - page and time.perf_counter() - started_s < 10:
            time.sleep(0.001)
        durations_ms.append((time.perf_counter() - started_s) * 1e3)
    return {
        "kill9_return_ms": round(statistics.median(durations_ms), 2),
        "kill9_missing_bytes": max(0, before_bytes - device.free_bytes()),
    }


def hold(device: Device, nbytes: int) -> Figures:
    """Not a probe of its own: takes memory, writes to it, and waits for the end."""
    base = device.reserve(nbytes)
    device.map(base, nbytes, device.create(nbytes))
    device.set_access(base, nbytes)
    device.write(base, b"held")
    print("held", flush=True)
    time.sleep(60)
    return {}


def export(device: Device, _rounds: int) -> Figures:
    """Whether another process reads what this one wrote, through a file descriptor."""
    page = device.granularity_bytes()
    base = device.reserve(page)
    handle = device.create(page, exportable=True)
    device.map(base, page, handle)
    device.set_access(base, page)
    device.write(base, b"exported")
    fd = device.export(handle)
    command = [sys.executable, __file__, "import_from", sys.argv[2], str(fd)]
    seen = subprocess.run(command, pass_fds=[fd], capture_output=True, text=True, timeout=40, check=False)
    os.close(fd)
    return {"export_is_seen": int(seen.stdout.startswith("exported"))}


def import_from(device: Device, fd: int) -> Figures:
    """Not a probe of its own: the other process of `export`."""
    page = device.granularity_bytes()
    base = device.reserve(page)
    device.map(base, page, device.import_handle(fd))
    device.set_access(base, page)
    print(device.read(base, 8).decode(), flush=True)
    return {}


def pool(device: Device, rounds: int) -> Figures:
    """Our own pool: what growing and trimming cost per page of eight stripes, and a full device."""
    try:
        from kvcached._core import Backend, Geometry, KvPool, OutOfMemory, set_libcuda_path
    except ImportError as error:
        raise Skipped(f"this package is not built here: {error}") from error
    set_libcuda_path(sys.argv[2])
    page = device.granularity_bytes()
    total_bytes = device.free_bytes()
    rows = max(4096, 2 * total_bytes // (8 * page) * 64)  # more addresses than memory
    geometry = Geometry(rows=rows, row_bytes=[page // 64] * 8, granularity_bytes=page, page_bytes=page)
    made = KvPool(Backend.cuda(0), geometry)
    grows_us, trims_us = [], []
    for _ in range(max(1, rounds // 16)):
        grows_us.append(timed_us(lambda: made.grow(made.rows_free_backed + 4 * geometry.rows_per_page)) / 4)
        trims_us.append(timed_us(made.trim) / 4)
    before = repr(made.stats())
    try:
        made.grow(made.rows_total - made.rows_used)
        is_clean = 0
    except OutOfMemory:
        is_clean = int(repr(made.stats()) == before)
    made.check_invariants()
    made.grow(made.rows_free_backed + geometry.rows_per_page)
    device.write(made.stripe_address(7), b"row 0")
    is_kept = device.read(made.stripe_address(7), 5) == b"row 0"
    made.close()
    return {
        "pool_grow_us_per_page": round(statistics.median(grows_us), 1),
        "pool_trim_us_per_page": round(statistics.median(trims_us), 1),
        "pool_oom_is_clean": is_clean,
        "pool_holds_data": int(is_kept),
        "pool_missing_bytes": max(0, total_bytes - device.free_bytes()),
    }


def dlpack(device: Device, _rounds: int) -> Figures:
    """Whether torch makes a tensor over addresses that have no memory, and works where they have some."""
    try:
        import torch

        from kvcached.tensors import tensor_over
    except ImportError as error:
        raise Skipped(f"torch or this package is missing: {error}") from error
    if not torch.cuda.is_available() or not device.has("cuLaunchKernel"):
        raise Skipped("torch has no CUDA device here")
    page = device.granularity_bytes()
    base = device.reserve(4 * page)
    tensor = tensor_over(base, (4, page // 4), torch.float32, "cuda:0", None)
    device.map(base + page, page, device.create(page))
    device.set_access(base + page, page)
    tensor[1].fill_(2.0)
    total = float(tensor[1].sum().item())
    return {"dlpack_over_unmapped_works": int(tensor.data_ptr() == base and total == 2.0 * (page // 4))}


PROBES: dict[str, Callable[[Device, int], Figures]] = {
    probe.__name__: probe
    for probe in (
        *(latency, rules, kernels_in_flight, unmap_in_use, out_of_memory),
        *(kill9, export, pool, dlpack, hold, import_from),
    )
}


def main() -> int:
    """Ask one question."""
    name, library, number = sys.argv[1:]
    try:
        answer: dict[str, float] | dict[str, str] = dict(PROBES[name](Device(library), int(number)))
    except Skipped as reason:
        answer = {"skip": str(reason)}
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
