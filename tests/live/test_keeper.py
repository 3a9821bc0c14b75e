"""Whatever dies, and however: no process of the engine and no file of it stays. Real processes, no SGLang."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prism.live.engine_process import failure_line, start_engine
from prism.live.guest_files import GuestRecord, kill_leftovers, load_record, remove_files
from prism.live.launch import Launch
from prism.live.proc_table import process_info, shared_files
from tests.live.prism_process import alive, wait_for

GUEST = Path(__file__).with_name("guest.py")


class Kept:
    """A guest under a keeper; we hold the keeper's standard input as prism would."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder / "engine"
        (self.folder / "tmp").mkdir(parents=True)
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "prism.live.keeper", str(self.folder), "--"),
                *(sys.executable, str(GUEST), str(self.notes), *arguments),
            ],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(self.folder / "tmp")},
        )
        wait_for((self.notes / "pids").exists, "the guest is up", 30)
        self.pids = [int(pid) for pid in (self.notes / "pids").read_text().split()]
        self.shared = Path(f"/dev/shm/guest-{self.pids[0]}")
        wait_for(self._noted, "the keeper noted everything", 30)

    def _noted(self) -> bool:
        record = load_record(self.folder)
        return record is not None and len(record.files) == 1 and set(self.pids) <= set(record.processes)

    def tell(self, word: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word)
        self.process.stdin.flush()

    def assert_gone(self) -> None:
        assert not [pid for pid in self.pids if alive(pid)]
        assert not self.shared.exists()
        assert not self.folder.exists()


@pytest.fixture
def kept(short_dir: Path, request: pytest.FixtureRequest) -> Iterator[Kept]:
    with running(short_dir, *getattr(request, "param", ())) as guest:
        yield guest


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Kept]:
    guest = Kept(folder, *arguments)
    try:
        yield guest
    finally:
        if guest.process.stdin is not None:
            guest.process.stdin.close()
        guest.process.wait(30)
        for pid in guest.pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        guest.shared.unlink(missing_ok=True)


def test_term_ends_engine_children_and_orphans(kept: Kept) -> None:
    kept.tell(b"term\n")
    assert kept.process.wait(30) == 128 + signal.SIGTERM
    kept.assert_gone()


@pytest.mark.parametrize("kept", [("stubborn",)], indirect=True)
def test_kill_ends_what_ignores_term(kept: Kept) -> None:
    kept.tell(b"term\n")
    with pytest.raises(subprocess.TimeoutExpired):
        kept.process.wait(0.5)
    kept.tell(b"kill\n")
    assert kept.process.wait(30) == 128 + signal.SIGKILL
    kept.assert_gone()


def test_end_of_file_means_prism_is_gone(kept: Kept) -> None:
    assert kept.process.stdin is not None
    kept.process.stdin.close()
    kept.process.wait(30)
    kept.assert_gone()


def test_terminal_signals_are_not_the_keepers(kept: Kept) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        kept.process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        kept.process.wait(0.5)
    assert all(alive(pid) for pid in kept.pids)


def test_engine_that_dies_takes_everything_along(kept: Kept) -> None:
    os.kill(kept.pids[0], signal.SIGKILL)
    assert kept.process.wait(30) == 128 + signal.SIGKILL
    kept.assert_gone()


def test_next_start_cleans_up_after_a_killed_keeper(kept: Kept) -> None:
    kept.process.kill()
    kept.process.wait(30)
    assert any(alive(pid) for pid in kept.pids[1:])  # the lasting child and the orphan know nothing of it
    record = load_record(kept.folder)
    assert record is not None
    assert kill_leftovers(record) >= 2
    remove_files(record)
    kept.assert_gone()


def test_leftovers_of_others_are_not_touched(short_dir: Path) -> None:
    """A recorded pid that now belongs to somebody else, a shared file somebody still maps."""
    with running(short_dir) as guest:
        other = guest.pids[1]
        info = process_info(other)
        assert info is not None
        (short_dir / "old").mkdir()
        record = GuestRecord(
            folder=short_dir / "old",
            keeper_pid=guest.pids[2],  # a session that is not ours: its TMPDIR is another
            processes={other: info.start_ticks - 1},
            files=set(shared_files()),
        )
        assert kill_leftovers(record) == 0
        assert alive(other)
        mapped = {path: identity for identity, path in shared_files().items()}[str(guest.shared)]
        record.files = {mapped}
        assert remove_files(record) == [str(short_dir / "old")]
        assert guest.shared.exists()


def test_records_of_another_boot_mean_nothing(short_dir: Path) -> None:
    record = GuestRecord(folder=short_dir, keeper_pid=1, processes={os.getpid(): 5})
    record.save()
    loaded = load_record(short_dir)
    assert loaded is not None
    assert loaded.processes == {os.getpid(): 5}
    path = short_dir / "state.json"
    path.write_text(path.read_text().replace('"boot_id": "', '"boot_id": "x'))
    assert load_record(short_dir) is None
    path.write_text("{")
    assert load_record(short_dir) is None


def noted_guests(notes: Path, folder: Path) -> list[int]:
    wait_for((notes / "pids").exists, "the guest is up", 30)
    pids = [int(pid) for pid in (notes / "pids").read_text().split()]

    def noted() -> bool:
        record = load_record(folder)
        return record is not None and bool(record.files) and set(pids) <= set(record.processes)

    wait_for(noted, "the keeper noted everything", 30)
    return pids


def test_killed_keeper_is_replaced_by_the_engine_process(short_dir: Path) -> None:
    """`EngineProcess.wait` does the keeper's work when the keeper itself was killed."""

    async def scenario() -> None:
        folder = short_dir / "engine"
        (folder / "tmp").mkdir(parents=True)
        environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
        launch = Launch((sys.executable, str(GUEST), str(short_dir)), environment)
        log_path = short_dir / "log"
        process = await start_engine(launch, url="http://x", folder=folder, log_path=log_path)
        pids = await asyncio.to_thread(noted_guests, short_dir, folder)
        os.kill(process.pid, signal.SIGKILL)
        assert await asyncio.wait_for(process.wait(), 30) == -signal.SIGKILL
        assert not [pid for pid in pids if alive(pid)]
        assert not folder.exists()
        assert f"/dev/shm/guest-{pids[0]}" not in shared_files().values()
        assert log_path.stat().st_mode & 0o777 == 0o600

    asyncio.run(scenario())


def test_failure_line_prefers_the_cause(short_dir: Path) -> None:
    log = short_dir / "log"
    assert failure_line(log) == "no log"
    log.write_text("start\nTraceback:\n  File x\nValueError: rows must be positive\nshutting down\n")
    assert failure_line(log) == "ValueError: rows must be positive"
