"""Wakes a scheduler that sleeps on idle when the ledger asks it for memory.

The scheduler's thread must give it back itself (only it may touch the prefix cache), and asleep it looks at
its sockets only once a second. An eventfd among them ends the sleep at once.
"""

import os
import threading
from typing import Any

from kvcached import _core

_WAIT_S = 1.0


class IdleWaker:
    """A thread that turns the ledger's asking into a readable eventfd while the scheduler sleeps.

    The thread only reads the ledger, so it changes nothing that the scheduler owns. It wakes once per change
    of the ledger: what this engine cannot give does not keep it awake.
    """

    def __init__(self, ledger: _core.Ledger, client: _core.LedgerClient) -> None:
        self._ledger = ledger
        self._client = client
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._asleep = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kvcached-waker", daemon=True)

    def start(self, poller: Any) -> None:
        """Join a `zmq.Poller`, which takes plain file descriptors too, and start watching."""
        import zmq

        poller.register(self._eventfd, zmq.POLLIN)
        self._thread.start()

    def sleep_begins(self) -> None:
        """The scheduler is about to poll its sockets with nothing to do."""
        self._asleep.set()

    def sleep_ended(self) -> None:
        """The scheduler runs again: drain what woke it."""
        self._asleep.clear()
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return

    def _watch(self) -> None:
        served_generation = -1
        while True:
            self._asleep.wait()
            generation = self._client.generation
            if generation != served_generation and self._client.asked_bytes() > 0:
                served_generation = generation
                self._asleep.clear()
                os.eventfd_write(self._eventfd, 1)
            else:
                self._ledger.wait(generation, _WAIT_S)
