"""The GPU bench, as far as a driver that runs no kernels can answer it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.standin import ROOT, build_standin


def run_bench(library: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "bench" / "gpu_vmm" / "run.py"), "--quick"],
        env={**os.environ, "KVCACHED_LIBCUDA": library},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


def test_the_standin_answers_all_but_what_needs_kernels(tmp_path: Path) -> None:
    done = run_bench(str(build_standin(tmp_path)))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["hardware"].endswith("libcuda stand-in, driver for CUDA 12.0")
    skipped = [line.partition(":")[0] for line in done.stderr.splitlines()]
    assert skipped == ["kernels_in_flight", "unmap_in_use", "dlpack"]
    assert report["skipped"] == len(skipped)
    figures = report["figures"]
    expected = {
        "granularity_bytes": 2 << 20,
        "unmap_many_allowed": 1,
        "unmap_part_allowed": 0,
        "set_access_over_hole_allowed": 0,
        "map_offset_allowed": 0,
        "oom_is_clean": 1,
        "oom_taken_share": 1.0,
        "oom_missing_bytes": 0,
        "kill9_missing_bytes": 0,
        "export_is_seen": 1,
        "pool_oom_is_clean": 1,
        "pool_holds_data": 1,
        "pool_missing_bytes": 0,
    }
    assert {key: figures[key] for key in expected} == expected
    verbs = (
        "create",
        "map",
        "set_access",
        "set_access_run",
        "unmap",
        "unmap_run",
        "release",
        "remap_recycled",
    )
    assert all(figures[f"{verb}_us"] > 0 for verb in verbs)


def test_without_a_device_it_says_so_and_fails() -> None:
    done = run_bench("/nowhere/libcuda.so.1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("no CUDA device to measure (/nowhere/libcuda.so.1): ")
