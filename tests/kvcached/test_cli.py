from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kvcached_sglang_plugin as plugin
from kvcached import cli, controls
from kvcached._core import Ledger
from kvcached.config import default_ledger_path
from kvcached.controls import Target, find_target
from kvcached.errors import LedgerRefused
from kvcached.stats import read_ledger
from kvcached.table import HOLDINGS, ledger_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Child, StartChild

LIVE_POOL = """
    import sys
    import kvcached
    cache = kvcached.alloc_kvcache(
        layers=2, rows=5_000, row_shape=(8, 64), name="chat", ledger_path=sys.argv[1], budget_bytes=1 << 30,
        floor_bytes=1 << 20, limit_bytes=1 << 26
    )
    rows = cache.alloc(700)
    print(cache.mapped_bytes)
    for line in sys.stdin:
        cache.free(rows)
        cache.trim()
        print(cache.mapped_bytes)
"""


def kvctl(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run kvctl as a command; exit code and its JSON."""
    done = subprocess.run(
        [sys.executable, "-c", "import kvcached_sglang_plugin as p; p.kvctl()", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def check_named(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [check for check in report["checks"] if check["name"] == name]
    assert len(found) == 1, report
    return found[0]


def test_list_shows_a_live_pool_of_another_process(start_child: StartChild, ledger_path: str) -> None:
    child = start_child(LIVE_POOL, ledger_path)
    mapped_bytes = int(child.line())
    code, report = kvctl("list", "--ledger", ledger_path)
    assert code == 0
    assert report["errors"] == []
    (ledger,) = report["ledgers"]
    assert (ledger["path"], ledger["device"], ledger["budget_bytes"]) == (ledger_path, "host0", 1 << 30)
    assert ledger["used_bytes"] == mapped_bytes
    (client,) = ledger["clients"]
    assert client["pid"] == child.pid
    assert client["name"] == "chat"
    assert client["used_bytes"] == client["mapped_bytes"] == mapped_bytes
    assert (client["floor_bytes"], client["limit_bytes"], client["rows_used"]) == (1 << 20, 1 << 26, 700)
    assert client["rows_backed"] >= 700
    child.say("free")
    after_bytes = int(child.line())
    assert after_bytes < mapped_bytes
    (client,) = kvctl("list", "--ledger", ledger_path)[1]["ledgers"][0]["clients"]
    assert (client["mapped_bytes"], client["rows_used"]) == (after_bytes, 0)


def test_list_without_a_path_shows_all_default_ledgers(start_child: StartChild) -> None:
    assert kvctl("list") == (0, {"ledgers": [], "errors": []})
    child = start_child(LIVE_POOL, default_ledger_path("host0"))
    child.line()
    Ledger(default_ledger_path("cuda0"), 1 << 30)
    code, report = kvctl("list")
    assert code == 0
    assert [(ledger["device"], len(ledger["clients"])) for ledger in report["ledgers"]] == [
        ("cuda0", 0),
        ("host0", 1),
    ]


def test_the_ledger_of_this_environment_is_found_too(
    monkeypatch: pytest.MonkeyPatch, ledger_path: str
) -> None:
    monkeypatch.setenv("KVCACHED_LEDGER", ledger_path)
    client = Ledger(ledger_path, 1 << 30).register(name="elsewhere")
    code, report = kvctl("list")
    assert [ledger["path"] for ledger in report["ledgers"]] == [ledger_path]
    assert kvctl("limit", "elsewhere", "1MiB")[0] == code == 0
    assert read_ledger(ledger_path).clients[0].limit_bytes == 1 << 20
    with pytest.raises(LedgerRefused, match="'elsewhere'"):
        Ledger(ledger_path).set_floor(slot=0, pid=os.getpid(), floor_bytes=2 << 20)
    client.close()


def test_list_as_text(capsys: pytest.CaptureFixture[str], ledger_path: str, start_child: StartChild) -> None:
    child = start_child(LIVE_POOL, ledger_path)
    child.line()
    assert cli.main(["list", "--ledger", ledger_path]) == 0
    head, columns, row = capsys.readouterr().out.splitlines()
    assert head.startswith("host0  budget 1.0 GiB, used ")
    assert columns.split()[:5] == ["NAME", "KIND", "PID", "USED", "MAPPED"]
    assert row.split()[:3] == ["chat", "kv", str(child.pid)]
    assert "64.0 MiB" in row


def test_list_shows_weights_and_kv_as_lines_of_one_budget(ledger_path: str) -> None:
    ledger = Ledger(ledger_path, 1000)
    weights = ledger.register(name="chat", kind="weights")
    kv = ledger.register(name="chat")
    assert weights.try_claim(700)
    assert kv.try_claim(200)
    _, report = kvctl("list", "--ledger", ledger_path)
    (shown,) = report["ledgers"]
    assert shown["used_bytes_by_kind"] == {"weights": 700, "kv": 200}
    assert [(client["kind"], client["used_bytes"]) for client in shown["clients"]] == [
        ("weights", 700),
        ("kv", 200),
    ]
    code, report = kvctl("limit", "chat", "1MiB", "--ledger", ledger_path)
    assert code == 1
    assert "2 clients match 'chat'" in report["error"]
    assert f"@1 of --ledger {ledger_path}" in report["error"]


def test_top_looks_again_and_shows_who_wants_and_who_is_asked(
    ledger_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(ledger_path, 1000)
    holder, waiter = (ledger.register(name=name) for name in ("holder", "waiter"))
    assert holder.try_claim(900)
    holder.set_spare(800)
    waiter.set_want(300, lapse_s=1000.0)
    options = ["top", "--count", "2", "--interval", "0.01", "--ledger", ledger_path]
    assert cli.main([*options, "--json"]) == 0
    looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(looks) == 2
    shown = {client["name"]: client for client in looks[1]["ledgers"][0]["clients"]}
    assert (shown["waiter"]["want_bytes"], shown["holder"]["asked_bytes"]) == (300, 200)
    assert cli.main(options) == 0
    text = capsys.readouterr().out
    assert text.count("ASKED FOR") == 2
    assert "90%" in text
    assert "\x1b" not in text, "a file or pipe gets no screen control"


# ---- changing ----------------------------------------------------------------------------------------------

CACHE = """
    import sys
    from kvcached._core import Ledger
    from kvcached.reclaim import ReclaimServer
    client = Ledger(sys.argv[1]).register(name="cache", floor_bytes=100)
    assert client.try_claim(900)
    with ReclaimServer(Ledger(sys.argv[1]), client, lambda nbytes: client.release(nbytes) or nbytes):
        print("ready")
        for line in sys.stdin:
            print(client.try_claim(int(line)))
"""


def until_used(ledger: Ledger, nbytes: int) -> None:
    deadline_s = time.monotonic() + 60.0
    while ledger.snapshot().used_bytes != nbytes:
        assert time.monotonic() < deadline_s, ledger.snapshot().clients
        time.sleep(0.01)


def test_a_lower_limit_shrinks_another_process_and_a_restored_one_regrows_it(
    start_child: StartChild, ledger_path: str
) -> None:
    ledger = Ledger(ledger_path, 1000)
    child = start_child(CACHE, ledger_path)
    assert child.line() == "ready"
    code, report = kvctl("limit", "cache", "300", "--ledger", ledger_path)
    assert code == 0
    assert report["client"]["limit_bytes"] == 300
    until_used(ledger, 300)
    child.say("1")
    assert child.line() == "False"
    assert kvctl("limit", str(child.pid), "none", "--ledger", ledger_path)[0] == 0
    child.say("600")
    assert child.line() == "True"


WARM_POOL = """
    import sys
    from kvcached._core import Backend, Ledger
    from kvcached.kv_pool import KVCachePool
    pool = KVCachePool(
        Backend.host(), layers=1, rows=4096, row_shape=(128,), page_bytes=4096, warm_bytes=1 << 20,
        client=Ledger(sys.argv[1]).register(name="pool"),
    )
    assert pool.geometry.rows_per_page == 16
    rows = []
    print(pool.geometry.page_set_bytes)
    for line in sys.stdin:
        what, pages = line.split()
        if what == "free":
            pool.free(rows.pop())
            print("freed")
        else:
            taken = pool.try_alloc(int(pages) * 16)
            rows += [] if taken is None else [taken]
            print(taken is not None)
"""


def test_a_lower_limit_takes_the_warm_pages_of_a_pool_that_does_nothing(
    start_child: StartChild, ledger_path: str
) -> None:
    ledger = Ledger(ledger_path, 1 << 30)
    child = start_child(WARM_POOL, ledger_path)
    page_bytes = int(child.line())
    child.say("take 4")
    assert child.line() == "True"
    full_bytes = (1 + 4 + 6) * page_bytes  # padding, the burst, and as much again and half of it kept ready
    until_used(ledger, full_bytes)
    assert kvctl("limit", "pool", str(full_bytes - 2 * page_bytes), "--ledger", ledger_path)[0] == 0
    until_used(ledger, full_bytes - 2 * page_bytes)
    assert kvctl("limit", "pool", "0", "--ledger", ledger_path)[1]["error"], "the padding page is its floor"
    assert kvctl("limit", "pool", str(page_bytes), "--ledger", ledger_path)[0] == 0
    until_used(ledger, 5 * page_bytes)
    child.say("take 1")
    assert child.line() == "False"
    child.say("free 0")  # used pages go as their requests end
    assert child.line() == "freed"
    until_used(ledger, page_bytes)
    assert kvctl("limit", "pool", "none", "--ledger", ledger_path)[0] == 0
    child.say("take 4")
    assert child.line() == "True"
    until_used(ledger, full_bytes)
    code, report = kvctl("reclaim", "pool", str(3 * page_bytes), "--ledger", ledger_path)
    assert (code, report["released_bytes"]) == (0, 3 * page_bytes)


def test_floor_priority_and_reclaim_of_another_process(start_child: StartChild, ledger_path: str) -> None:
    ledger = Ledger(ledger_path, 1000)
    child = start_child(CACHE, ledger_path)
    assert child.line() == "ready"
    code, report = kvctl("reclaim", "@0", "300", "--ledger", ledger_path)
    assert (code, report["asked_bytes"], report["released_bytes"]) == (0, 300, 300)
    _, report = kvctl("floor", "cache", "500", "--ledger", ledger_path)
    assert report["client"]["floor_bytes"] == 500
    _, report = kvctl("priority", "cache", "-3", "--ledger", ledger_path)
    assert report["client"]["priority"] == -3
    code, report = kvctl("reclaim", "cache", "1KiB", "--ledger", ledger_path)
    assert (code, report["asked_bytes"]) == (0, 100), "its floor is not asked for"
    assert ledger.snapshot().used_bytes == 500
    code, report = kvctl("floor", "cache", "2KiB", "--ledger", ledger_path)
    assert code == 1
    assert "smallest budget that works" in report["error"]
    code, report = kvctl("limit", "cache", "400", "--ledger", ledger_path)
    assert code == 1
    assert "exceeds its limit" in report["error"]


def test_reclaim_says_when_too_little_came_back(capsys: pytest.CaptureFixture[str], ledger_path: str) -> None:
    client = Ledger(ledger_path, 1000).register(name="busy")
    assert client.try_claim(800)
    assert cli.main(["reclaim", "busy", "500", "--within", "0.05", "--ledger", ledger_path]) == 1
    assert capsys.readouterr().out == "0 B of 500 B came back\n"
    assert cli.main(["limit", "nobody", "500", "--ledger", ledger_path]) == 1
    assert "no client 'nobody'" in capsys.readouterr().err


LEAVING = """
    import sys
    from kvcached._core import Ledger
    ledger = Ledger(sys.argv[1])
    client = ledger.register(name="leaving")
    assert client.try_claim(900)
    print("ready")
    while client.asked_bytes() == 0:
        ledger.wait(client.generation, 0.1)
    client.close()
    sys.stdin.read()
"""


def test_reclaim_of_one_that_gives_all_back_and_leaves_is_a_success(
    start_child: StartChild,
    ledger_path: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ledger = Ledger(ledger_path, 1000)
    child = start_child(LEAVING, ledger_path)
    assert child.line() == "ready"
    code, report = kvctl("reclaim", "leaving", "300", "--within", "60", "--ledger", ledger_path)
    assert (code, report["asked_bytes"], report["released_bytes"]) == (0, 300, 900)
    client = ledger.register(name="gone")
    assert client.try_claim(700)
    target = find_target("gone", [ledger_path])
    recall = Ledger.recall

    def leave(self: Ledger, **options: Any) -> int:
        level_bytes = recall(self, **options)
        client.close()
        return level_bytes

    monkeypatch.setattr(controls, "Ledger", type("Leaving", (Ledger,), {"recall": leave}))
    assert target.recall(300, 60.0) == (300, 700)
    monkeypatch.setattr(Target, "recall", lambda *_: (300, 700))
    monkeypatch.setattr(cli, "find_target", lambda *_: target)
    assert cli.main(["reclaim", "gone", "300", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["client"] is None


def test_a_limit_below_what_is_held_says_what_becomes_of_it(
    ledger_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Ledger(ledger_path, 1000).register(name="cache")
    assert client.try_claim(900)
    for rows_used, expected in ((0, "it reports no rows in use"), (5, "the rest goes as its requests end")):
        client.publish(rows_used=rows_used)
        assert cli.main(["limit", "cache", "400", "--ledger", ledger_path]) == 0
        shown = capsys.readouterr().out.splitlines()[-1]
        assert shown == f"500 B above its limit are asked back now; {expected}"
    client.close()


def write_private(path: str, content: bytes) -> str:
    Path(path).write_bytes(content)
    Path(path).chmod(0o600)
    return path


def test_clean_removes_only_what_no_living_process_has_open(start_child: StartChild) -> None:
    used, unused, older, blank = (default_ledger_path(name) for name in ("host0", "host1", "host2", "host3"))
    child = start_child(LIVE_POOL, used)
    child.line()
    Ledger(unused, 1 << 20)
    write_private(older, b"kvledger of another version")
    write_private(blank, b"")
    code, report = kvctl("clean")
    assert code == 0
    kept = [{"path": used, "reason": "in use"}]
    assert report == {"removed": [unused, older, blank], "kept": kept, "errors": []}
    assert [path.name for path in Path(used).parent.iterdir()] == ["host0.ledger"]
    child.kill()
    assert kvctl("clean")[1]["removed"] == [used]


def test_clean_never_removes_what_is_no_ledger(
    ledger_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(default_ledger_path("host0")).parent.mkdir(mode=0o700)
    ssh = tmp_path / "ssh"
    ssh.mkdir(mode=0o700)
    key = write_private(str(ssh / "id_rsa"), b"-----BEGIN OPENSSH PRIVATE KEY-----")
    named = write_private(default_ledger_path("host0"), b"somebody's notes")
    elsewhere = write_private(ledger_path, b"")
    code, report = kvctl("clean", "--ledger", key, "--ledger", named, "--ledger", elsewhere)
    assert (code, report["removed"], report["kept"]) == (1, [], [])
    assert [failure["path"] for failure in report["errors"]] == [key, named, elsewhere]
    assert cli.main(["clean"]) == 1, "junk in the ledgers' folder is named, not removed"
    assert f"{named}: is no ledger" in capsys.readouterr().err
    assert all(Path(path).exists() for path in (key, named, elsewhere))


def test_doctor_names_processes_whose_ledger_was_deleted_under_them(
    start_child: StartChild, ledger_path: str
) -> None:
    child = start_child(LIVE_POOL, ledger_path)
    child.line()
    Path(ledger_path).unlink()
    Ledger(ledger_path, 1 << 20)
    _, report = kvctl("doctor", "--ledger", ledger_path)
    check = check_named(report, f"ledger {ledger_path}, pid {child.pid}")
    assert check["status"] == "warn"
    assert "deleted or replaced" in check["detail"]


@pytest.mark.parametrize("content", [None, b"", b"no ledger" * 4000])
def test_list_names_a_file_that_is_no_ledger(
    capsys: pytest.CaptureFixture[str], ledger_path: str, content: bytes | None
) -> None:
    if content is not None:
        Path(ledger_path).write_bytes(content)
        Path(ledger_path).chmod(0o600)
    assert cli.main(["list", "--ledger", ledger_path]) == 1
    assert ledger_path in capsys.readouterr().err
    assert kvctl("list", "--ledger", ledger_path)[1]["errors"][0]["path"] == ledger_path


def test_an_odd_file_among_the_ledgers_hides_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    good = default_ledger_path("host0")
    client = Ledger(good, 4 << 30).register(name="a")
    junk = write_private(default_ledger_path("cuda1"), b"junk")
    odd = write_private(os.fsdecode(os.fsencode(good).replace(b"host0", b"\xff")), b"")
    code, report = kvctl("limit", "a", "1GiB")
    assert (code, report["client"]["limit_bytes"]) == (0, 1 << 30)
    code, report = kvctl("limit", "b", "1GiB")
    assert code == 1
    assert "no client 'b'" in report["error"]
    assert junk in report["error"]
    for command in ("list", "clean"):
        code, report = kvctl(command)
        assert code == 1
        assert {failure["path"] for failure in report["errors"]} == {junk, odd}
        assert cli.main([command]) == 1
        shown = capsys.readouterr()
        assert "host0" in shown.out
        assert "\\udcff.ledger: its path is no UTF-8" in shown.err
    assert cli.main(["doctor"]) == 1
    assert cli.main(["top", "--count", "1"]) == 1
    client.close()


def test_names_cannot_steer_the_terminal(ledger_path: str) -> None:
    client = Ledger(ledger_path, 1000).register(name="chat")
    stats = read_ledger(ledger_path)
    nasty = "a\x1b[2J\n\u202e\udcff"
    clients = (dataclasses.replace(stats.clients[0], name=nasty),)
    shown = ledger_table(dataclasses.replace(stats, path=nasty, clients=clients), HOLDINGS)
    assert shown.replace("\n", "").isprintable()
    assert "a\\x1b[2J\\n\\u202e\\udcff" in shown
    client.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["priority", "a", "99999999999"], "give an integer from -2147483647 to 2147483647"),
        (["priority", "a", "x"], "give an integer"),
        (["limit", "a", "99999999999GiB"], "more than any device has"),
        (["floor", "a", "129TiB"], "more than any device has"),
        (["limit", "a", "9" * 400 + ".5GiB"], "not a whole number"),
        (["reclaim", "a", "1GiB", "--within", "1e9"], "give seconds above 0"),
        (["top", "--count", "0"], "give 1 or more"),
    ],
)
def test_values_out_of_range(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([*arguments, "--json"])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_the_largest_values_reach_the_ledger(ledger_path: str) -> None:
    Ledger(ledger_path, 1000).register(name="gone").close()
    client = Ledger(ledger_path, 1000).register(name="a")
    for priority in ("2147483647", "-2147483647"):
        assert cli.main(["priority", "a", priority, "--ledger", ledger_path]) == 0
    assert cli.main(["limit", "a", "128TiB", "--ledger", ledger_path]) == 0
    assert Ledger(ledger_path).snapshot().clients[0].limit_bytes == 1 << 47
    client.close()


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["lsit"], ["list", "--jsno"]):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 2
    assert "usage: kvctl" in capsys.readouterr().err


def test_doctor_finds_this_machine_healthy(start_child: StartChild, ledger_path: str) -> None:
    child = start_child(LIVE_POOL, ledger_path)
    child.line()
    _, report = kvctl("doctor", "--ledger", ledger_path)
    for name in (
        "ownership",
        "core",
        "settings",
        "plugin",
        "host backend",
        "host backend, strict",
        f"ledger {ledger_path}",
    ):
        assert check_named(report, name)["status"] == "ok", report
    assert check_named(report, "CUDA backend")["detail"]
    assert report["healthy"] == all(check["status"] != "fail" for check in report["checks"])


def test_doctor_names_stale_ledgers_and_open_folders() -> None:
    path = default_ledger_path("host0")
    Ledger(path, 1 << 20)
    _, report = kvctl("doctor")
    assert check_named(report, f"ledger {path}")["status"] == "warn"
    assert "stale" in check_named(report, f"ledger {path}")["detail"]
    assert check_named(report, "ledger folder")["status"] == "ok"
    Path(path).parent.chmod(0o755)
    code, report = kvctl("doctor")
    assert code == 1
    assert check_named(report, "ledger folder")["status"] == "fail"
    assert "0755" in check_named(report, "ledger folder")["detail"]
    assert check_named(report, "ledger folder")["remedy"].startswith("chmod 700")


def test_doctor_names_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCACHED_BUGET_BYTES", "1")
    code, report = kvctl("doctor")
    assert code == 1
    assert "KVCACHED_BUDGET_BYTES" in check_named(report, "settings")["detail"]


# A stand-in for an engine is enough here: doctor sees only its title, environment and ledger.


@pytest.fixture
def launch_titled() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []

    def launch(title: str, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [title, "100"], executable="/bin/sleep", env={"PATH": "/bin", **environment}
        )
        running.append(process)
        deadline = time.monotonic() + 60
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(title.encode()):
            assert time.monotonic() < deadline
        return process

    yield launch
    for process in running:
        process.kill()
        process.wait(60)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "KVCACHED_ENABLE is ''"),
        ({"KVCACHED_ENABLE": "0"}, "KVCACHED_ENABLE is '0'"),
        ({"KVCACHED_ENABLE": "1", "SGLANG_PLUGINS": "other"}, "SGLANG_PLUGINS=other leaves kvcached out"),
        ({"KVCACHED_ENABLE": "1"}, "in no ledger known here"),
    ],
)
def test_doctor_names_engines_that_run_without_us(
    launch_titled: Callable[..., subprocess.Popen[bytes]], environment: dict[str, str], reason: str
) -> None:
    process = launch_titled("sglang::scheduler", **environment)
    code, report = kvctl("doctor")
    assert code == 1
    check = check_named(report, f"SGLang engine, pid {process.pid}")
    assert check["status"] == "fail"
    assert "WITHOUT kvcached" in check["detail"]
    assert reason in check["detail"]
    assert check["remedy"]


TITLED_POOL = """
    import sys
    import setproctitle
    import kvcached
    shape = {"layers": 1, "rows": 100, "row_shape": (1, 64)}
    cache = kvcached.alloc_kvcache(**shape, ledger_path=sys.argv[1], budget_bytes=1 << 24)
    setproctitle.setproctitle(sys.argv[2])
    print("ready")
    sys.stdin.read()
"""


def test_doctor_accepts_an_engine_that_is_registered_anywhere_known(
    start_child: StartChild, ledger_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("setproctitle")
    child: Child = start_child(TITLED_POOL, ledger_path, "sglang::scheduler")
    assert child.line() == "ready"
    _, report = kvctl("doctor", "--ledger", ledger_path)
    assert check_named(report, f"SGLang engine, pid {child.pid}")["status"] == "ok"
    # Its title has overwritten its environment, and its launcher was not started with the path.
    assert b"KVCACHED" not in Path(f"/proc/{child.pid}/environ").read_bytes()
    monkeypatch.setenv("KVCACHED_LEDGER", ledger_path)
    _, report = kvctl("doctor")
    assert check_named(report, f"SGLang engine, pid {child.pid}")["status"] == "fail"


def test_doctor_takes_a_tensor_parallel_group_as_one_client(
    start_child: StartChild, launch_titled: Callable[..., subprocess.Popen[bytes]], ledger_path: str
) -> None:
    pytest.importorskip("setproctitle")
    rank1 = launch_titled("sglang::scheduler_TP1", KVCACHED_ENABLE="1")
    other = launch_titled("sglang::scheduler_DP1_TP0", KVCACHED_ENABLE="1")
    name = f"SGLang engine, pid {rank1.pid}"
    assert check_named(kvctl("doctor", "--ledger", ledger_path)[1], name)["status"] == "fail"
    rank0 = start_child(TITLED_POOL, ledger_path, "sglang::scheduler_TP0")
    assert rank0.line() == "ready"
    _, report = kvctl("doctor", "--ledger", ledger_path)
    assert check_named(report, name)["status"] == "ok"
    assert check_named(report, f"SGLang engine, pid {other.pid}")["status"] == "fail"


def test_this_environment_has_our_package() -> None:
    assert plugin.find_conflict() is None
