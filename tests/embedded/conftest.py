"""Real servers, and real processes that use them, can be killed, and leave nothing behind."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_S = 20.0
_USER = """
import json, os, signal, sys
from pathlib import Path
from pipeline.embedded import ensure

sys.stdin.readline()
server = ensure(Path(sys.argv[1]))
child = os.fork() if "fork" in sys.argv else None
if child != 0:
    print(json.dumps({"server": server.pid, "url": server.url, "child": child}), flush=True)
signal.pause()
"""


class User:
    """A process that holds a share in the server of a folder until it's killed.

    Attributes:
        server: the server's pid.
        child: pid of the process it forked, if it was asked to.
    """

    def __init__(self, folder: Path, *, fork: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _USER, str(folder), *(["fork"] if fork else [])],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.server = 0
        self.url = ""
        self.child: int | None = None

    def go(self) -> None:
        """Let it take its share, without waiting for it."""
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def wait(self) -> "User":
        """Wait until it has its share."""
        assert self._process.stdout
        said: dict[str, Any] = json.loads(self._process.stdout.readline())
        self.server, self.url, self.child = said["server"], said["url"], said["child"]
        return self

    def kill(self) -> None:
        """End it by SIGKILL, reaped on return; its child lives on."""
        self._process.kill()
        self._process.wait(_PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()

    def kill_child(self) -> None:
        """End the process it forked by SIGKILL."""
        assert self.child
        os.kill(self.child, signal.SIGKILL)
        wait_for_end(self.child)


def wait_for_end(pid: int) -> None:
    """Wait until the process has ended, be it ours or not."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        assert poll.poll(_PATIENCE_S * 1000), f"process {pid} doesn't end"
    finally:
        os.close(process)


@pytest.fixture
def state() -> Iterator[Path]:
    """A state folder that doesn't exist yet; afterwards no server may be left in it."""
    root = Path(tempfile.mkdtemp(prefix="tw"))
    folder = root / "state"
    yield folder
    deadline_s = time.monotonic() + _PATIENCE_S
    while left := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _lives_in(root, pid)]:
        assert time.monotonic() < deadline_s, f"left behind: {left}"
        for pid in left:
            wait_for_end(pid)
    shutil.rmtree(root)


def _lives_in(root: Path, pid: int) -> bool:
    """Whether a server or keeper works below `root`; false for a process that has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(root)
    except OSError:
        return False


@pytest.fixture
def user(state: Path) -> Iterator[Callable[..., User]]:
    """Starts a user of `state` and waits for its share, unless `wait=False`; all are killed in the end."""
    with ExitStack() as users:

        def start(*, fork: bool = False, wait: bool = True) -> User:
            started = User(state, fork=fork)
            users.callback(started.kill)
            if wait:
                started.go()
                started.wait()
            return started

        yield start


@pytest.fixture
def connect() -> Iterator[Callable[[str], Redis]]:
    """Clients that repeat nothing, closed in the end."""
    with ExitStack() as clients:

        def client(url: str) -> Redis:
            redis: Redis = Redis.from_url(url, retry=Retry(NoBackoff(), 0))
            clients.callback(redis.close)
            return redis

        yield client


@pytest.fixture
def ends() -> Callable[[int], None]:
    """Waits for the end of a process by its pid; fails after a while."""
    return wait_for_end


@pytest.fixture
def keeper() -> Callable[[int], int]:
    """The pid of a server's keeper, its parent."""

    def parent(server: int) -> int:
        status = Path(f"/proc/{server}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in status if line.startswith("PPid:")))

    return parent
