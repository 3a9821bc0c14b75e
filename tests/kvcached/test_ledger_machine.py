"""The real ledger against a plain model of it: clients of this process and one that is killed with -9.

Steps come one after the other, so the model knows exactly what each must answer (all their interleavings are
`test_ledger_model.py`'s). After each step: what the ledger shows is what the model holds; nobody holds more
than was granted; nobody is asked below its floor; a waiter that could be granted what it waits for is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcached._core import Ledger, LedgerClient
from kvcached.errors import LedgerRefused

if TYPE_CHECKING:
    from collections.abc import Callable

BUDGET = 12
LOCAL = ("a", "b", "c")
CHILD = "child"
LAPSE_S = 1000.0

OTHER_PROCESS = """
    import sys
    from kvcached._core import Ledger
    ledger = Ledger(sys.argv[1])
    client = ledger.register(name="child", floor_bytes=int(sys.argv[2]), priority=int(sys.argv[3]))
    print("ready")
    for line in sys.stdin:
        what, nbytes = line.split()
        if what == "release":
            client.release(int(nbytes))
            print("done")
        elif what == "claim":
            print(client.try_claim(int(nbytes)))
        else:
            generation = client.generation
            is_first = True
            while not client.try_claim(int(nbytes)):
                client.set_want(int(nbytes), 1000.0)
                if is_first:
                    print("waits")
                is_first = False
                generation = ledger.wait(generation, 60.0)
            print("granted")
"""


class OtherProcess:
    """A client in a process of its own."""

    def __init__(self, path: str, floor: int, priority: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(OTHER_PROCESS), path, str(floor), str(priority)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, text: str) -> None:
        pipe: IO[str] | None = self.process.stdin
        assert pipe is not None
        pipe.write(f"{text}\n")
        pipe.flush()

    def line(self) -> str:
        pipe: IO[str] | None = self.process.stdout
        assert pipe is not None
        return pipe.readline().rstrip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class Account:
    """What the model knows of one client."""

    pid: int
    slot: int
    floor: int
    priority: int
    limit: int | None = None
    used: int = 0
    want_to: int = 0
    waits_for: int = 0
    client: LedgerClient | None = None

    @property
    def entitled(self) -> int:
        return max(self.used, self.floor)

    @property
    def want(self) -> int:
        return max(0, self.want_to - self.entitled)

    @property
    def most(self) -> int:
        return BUDGET if self.limit is None else self.limit


BYTES = st.integers(0, BUDGET)
FLOORS = st.integers(0, BUDGET // 2)
PRIORITIES = st.integers(0, 2)


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.ledger = Ledger(f"{self.folder.name}/host0.ledger", BUDGET)
        self.accounts: dict[str, Account] = {}
        self.child: OtherProcess | None = None

    def teardown(self) -> None:
        if self.child is not None:
            self.child.kill()
        for account in self.accounts.values():
            if account.client is not None:
                account.client.close()
        self.folder.cleanup()

    def room(self, account: Account) -> int:
        """What `account` could be granted now."""
        others = sum(other.entitled for other in self.accounts.values() if other is not account)
        return min(BUDGET - others, account.most) - account.used

    def granted(self, account: Account, nbytes: int) -> None:
        account.used += nbytes
        if account.used > account.floor and account.want_to <= account.used:
            account.want_to = 0

    def floors_fit(self, floor: int, most: int, account: Account | None = None) -> bool:
        others = sum(other.floor for other in self.accounts.values() if other is not account)
        return floor <= most and floor + others <= BUDGET

    def rings(self, change: Callable[[], object]) -> None:
        """Whoever waits has to look again after this."""
        before = self.ledger.snapshot().generation
        change()
        assert self.ledger.snapshot().generation != before

    def place_of(self, name: str) -> int:
        return next(info.slot for info in self.ledger.snapshot().clients if info.name == name)

    def able(self) -> list[Account]:
        """Those that can be told to do something: a waiting process is not listening."""
        return [account for account in self.accounts.values() if not account.waits_for]

    # ---- coming and going

    @precondition(lambda self: any(name not in self.accounts for name in LOCAL))
    @rule(data=st.data(), floor=FLOORS, priority=PRIORITIES)
    def register(self, data: st.DataObject, floor: int, priority: int) -> None:
        name = data.draw(st.sampled_from([name for name in LOCAL if name not in self.accounts]))
        if not self.floors_fit(floor, BUDGET):
            with pytest.raises(LedgerRefused):
                self.ledger.register(name=name, floor_bytes=floor)
            return
        client = self.ledger.register(name=name, floor_bytes=floor, priority=priority)
        slot = self.place_of(name)
        self.accounts[name] = Account(os.getpid(), slot, floor, priority, client=client)

    @precondition(lambda self: any(name in self.accounts for name in LOCAL))
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([name for name in LOCAL if name in self.accounts]))
        client = self.accounts.pop(name).client
        assert client is not None
        self.rings(client.close)

    @precondition(lambda self: self.child is None)
    @rule(floor=FLOORS, priority=PRIORITIES)
    def start_child(self, floor: int, priority: int) -> None:
        if not self.floors_fit(floor, BUDGET):
            return
        self.child = OtherProcess(self.ledger.path, floor, priority)
        assert self.child.line() == "ready"
        self.accounts[CHILD] = Account(self.child.process.pid, self.place_of(CHILD), floor, priority)

    @precondition(lambda self: self.child is not None)
    @rule()
    def kill_child(self) -> None:
        assert self.child is not None
        self.rings(self.child.kill)
        self.child = None
        del self.accounts[CHILD]

    # ---- taking and giving

    @precondition(lambda self: self.able())
    @rule(data=st.data(), nbytes=BYTES)
    def claim(self, data: st.DataObject, nbytes: int) -> None:
        account = data.draw(st.sampled_from(self.able()))
        fits = nbytes <= self.room(account)
        if account.client is not None:
            assert account.client.try_claim(nbytes) == fits
        else:
            assert self.child is not None
            self.child.tell(f"claim {nbytes}")
            assert self.child.line() == str(fits)
        if fits:
            self.granted(account, nbytes)

    @precondition(lambda self: any(account.used for account in self.able()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        account = data.draw(st.sampled_from([account for account in self.able() if account.used]))
        nbytes = data.draw(st.integers(1, account.used))
        if account.client is not None:
            client = account.client
            self.rings(lambda: client.release(nbytes))
        else:
            assert self.child is not None
            self.child.tell(f"release {nbytes}")
            assert self.child.line() == "done"
        account.used -= nbytes

    @precondition(lambda self: self.child is not None and not self.accounts[CHILD].waits_for)
    @rule(nbytes=st.integers(1, BUDGET))
    def wait_in_child(self, nbytes: int) -> None:
        assert self.child is not None
        account = self.accounts[CHILD]
        self.child.tell(f"wait {nbytes}")
        if nbytes <= self.room(account):
            assert self.child.line() == "granted"
            self.granted(account, nbytes)
        else:
            assert self.child.line() == "waits"
            account.waits_for, account.want_to = nbytes, account.used + nbytes

    @precondition(lambda self: any(name in self.accounts for name in LOCAL))
    @rule(data=st.data(), nbytes=BYTES)
    def want(self, data: st.DataObject, nbytes: int) -> None:
        account = self.accounts[data.draw(st.sampled_from([n for n in LOCAL if n in self.accounts]))]
        assert account.client is not None
        account.client.set_want(nbytes, LAPSE_S)
        account.want_to = account.used + nbytes if nbytes else 0

    @rule()
    def reclaim(self) -> None:
        """All of this process offer what they hold and give what they are asked for."""
        local = [account for account in self.accounts.values() if account.client is not None]
        for account in local:
            assert account.client is not None
            account.client.set_spare(account.used)
        for _ in range(2 * BUDGET):
            asked = [(a, a.client.asked_bytes()) for a in local if a.client is not None]
            asking = [(account, nbytes) for account, nbytes in asked if nbytes]
            if not asking:
                break
            account, nbytes = asking[0]
            assert account.client is not None
            account.client.release(nbytes)
            account.used -= nbytes
        else:
            pytest.fail("asked again and again")
        self.assert_the_first_want_can_be_met(local)

    def assert_the_first_want_can_be_met(self, givers: list[Account]) -> None:
        """Or all who might give to it are down at their floors."""
        wanting = [account for account in self.accounts.values() if account.want]
        first = [a for a in wanting if a.priority == max(other.priority for other in wanting)]

        def is_met(account: Account) -> bool:
            others_floors = sum(other.floor for other in self.accounts.values() if other is not account)
            reach = min(account.want_to, account.most, BUDGET - others_floors) - account.used
            may_give = [g for g in givers if g is not account and g.priority <= account.priority]
            return reach <= self.room(account) or all(giver.used <= giver.floor for giver in may_give)

        assert not first or any(is_met(account) for account in first)

    # ---- settings, as another process makes them

    @precondition(lambda self: self.accounts)
    @rule(data=st.data(), limit=st.none() | BYTES)
    def set_limit(self, data: st.DataObject, limit: int | None) -> None:
        account = data.draw(st.sampled_from(list(self.accounts.values())))

        def change() -> None:
            self.ledger.set_limit(slot=account.slot, pid=account.pid, limit_bytes=limit)

        if limit is None or self.floors_fit(account.floor, limit, account):
            self.rings(change)
            account.limit = limit
        else:
            with pytest.raises(LedgerRefused):
                change()

    @precondition(lambda self: self.accounts)
    @rule(data=st.data(), floor=FLOORS)
    def set_floor(self, data: st.DataObject, floor: int) -> None:
        account = data.draw(st.sampled_from(list(self.accounts.values())))

        def change() -> None:
            self.ledger.set_floor(slot=account.slot, pid=account.pid, floor_bytes=floor)

        if self.floors_fit(floor, account.most, account):
            self.rings(change)
            account.floor = floor
        else:
            with pytest.raises(LedgerRefused):
                change()

    @precondition(lambda self: self.accounts)
    @rule(data=st.data(), priority=PRIORITIES)
    def set_priority(self, data: st.DataObject, priority: int) -> None:
        account = data.draw(st.sampled_from(list(self.accounts.values())))
        self.ledger.set_priority(slot=account.slot, pid=account.pid, priority=priority)
        account.priority = priority

    # ---- promises

    @invariant()
    def a_waiter_that_can_be_granted_what_it_waits_for_is(self) -> None:
        account = self.accounts.get(CHILD)
        if account is None or not account.waits_for or account.waits_for > self.room(account):
            return
        assert self.child is not None
        assert self.child.line() == "granted"
        self.granted(account, account.waits_for)
        account.waits_for = 0

    @invariant()
    def the_ledger_shows_what_was_granted(self) -> None:
        snapshot = self.ledger.snapshot()
        assert snapshot.used_bytes <= BUDGET
        shown = {info.name: info for info in snapshot.clients}
        assert shown.keys() == self.accounts.keys()
        for name, account in self.accounts.items():
            info = shown[name]
            assert (info.used_bytes, info.floor_bytes, info.limit_bytes, info.priority, info.want_bytes) == (
                account.used,
                account.floor,
                account.limit,
                account.priority,
                account.want,
            )
            assert 0 <= info.asked_bytes <= max(0, account.used - account.floor)


LedgerMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLedger = LedgerMachine.TestCase
