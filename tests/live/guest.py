"""Stands in for an engine in the keeper's tests: children, an orphan that left the session, a shared file.

Run as `python guest.py FOLDER [stubborn]`; writes the pids into FOLDER/pids when everything is there.
"""

import mmap
import os
import signal
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
fd = os.open(f"/dev/shm/guest-{os.getpid()}", os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, 4096)
shared = mmap.mmap(fd, 4096)
(Path(os.environ["TMPDIR"]) / "socket").touch()

child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()  # leaves the session, and its parent ends
        (folder / "orphan").write_text(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.waitpid(child, 0)
lasting = os.fork()
if lasting == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
while not (folder / "orphan").exists() or not (folder / "orphan").read_text():
    time.sleep(0.01)
pids = [os.getpid(), lasting, int((folder / "orphan").read_text())]
(folder / "pids.new").write_text(" ".join(map(str, pids)))
(folder / "pids.new").rename(folder / "pids")
time.sleep(600)
