"""The processes of a deployment under test: a Redis that can be ended and started again, and `tokenweir run`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tests.support import free_port, server_binary

# A worker imports openai and ollama; on busy cores that takes a while.
START_S = 40.0
_LOOK_AGAIN_S = 0.01


def wait_until(condition: Callable[[], object], timeout_s: float = 5.0, *, why: str = "") -> None:
    """Return once `condition()` is true; fail after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, why or f"not within {timeout_s:g} s"
        time.sleep(_LOOK_AGAIN_S)


class Store:
    """A Redis server with its data on disk, so that it can be ended and started again.

    Args:
        options: more of the server's command line.
    """

    def __init__(self, folder: Path, kind: str, options: Sequence[str] = ()) -> None:
        binary = server_binary(kind) or server_binary("redis")
        assert binary, "no server on this machine"
        self._folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._words = [str(binary), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)]
        self._words += ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--logfile", "redis.log"]
        self._words += ["--maxmemory-policy", "noeviction", *options]
        self._process: subprocess.Popen[bytes] | None = None
        self.client: Redis = Redis.from_url(self.url, retry=Retry(NoBackoff(), 0))

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self._process
        return self._process.pid

    def launch(self) -> None:
        """Start it; it may take its time."""
        self._process = subprocess.Popen(self._words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start(self) -> None:
        """Start it and wait until it has loaded its data."""
        self.launch()
        wait_until(lambda: self.answers, 10, why="the server doesn't answer")

    def stop(self) -> None:
        """End it in order."""
        if self._process:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(10)

    def kill(self) -> None:
        """kill -9."""
        assert self._process
        self._process.kill()
        self._process.wait(10)

    def copy(self) -> Path:
        """Its data as it is on disk now, as a replica that lags would have it."""
        return Path(shutil.copytree(self._folder / "appendonlydir", self._folder / f"copy{time.monotonic_ns()}"))

    def fail_over(self, copy: Path) -> None:
        """It dies, and another server takes over its address with the data of `copy`: what came later is lost."""
        self.kill()
        shutil.rmtree(self._folder / "appendonlydir")
        shutil.move(copy, self._folder / "appendonlydir")
        self.start()

    @property
    def answers(self) -> bool:
        """Whether it serves: it is there, and has loaded its data."""
        try:
            return bool(self.client.ping())
        except RedisError:
            return False


class Workers:
    """One `tokenweir run` with its worker processes; its log is kept."""

    def __init__(self, words: Sequence[str], log: Path, count: int) -> None:
        self.log, self.count = log, count
        # The shell's environment may name another Redis.
        env = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
        with log.open("wb") as out:
            # A session of its own: signals to its group reach what a terminal's Ctrl-C would reach.
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, env=env
            )
        self.pid = self._process.pid

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event so far."""
        lines = (line for line in self.text.splitlines() if f'"{name}"' in line and line.startswith("{"))
        found: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("}")]
        return [line for line in found if line["event"] == name]

    @property
    def text(self) -> str:
        """All that it wrote."""
        return self.log.read_text(errors="replace")

    @property
    def started(self) -> list[dict[str, Any]]:
        """One line per worker process that came up: `pid`, `metrics_port`."""
        return [{**line, "pid": int(line["consumer"].split(":")[1])} for line in self.events("worker_started")]

    def wait_ready(self) -> Workers:
        """Return when all worker processes are up."""
        ready = lambda: len(self.started) >= self.count or self._process.poll() is not None  # noqa: E731
        wait_until(ready, START_S, why="the workers don't start")
        assert self._process.poll() is None, self.text
        return self

    @property
    def live(self) -> list[int]:
        """The pids of worker processes that live now."""
        return [line["pid"] for line in self.started if _lives(line["pid"])]

    def kill(self, pid: int | None = None) -> None:
        """kill -9 of a worker process, the oldest one by default."""
        os.kill(pid or self.live[0], signal.SIGKILL)

    def signal(self, number: int = signal.SIGTERM, *, group: bool = False) -> None:
        """Send a signal to the process, or, as a terminal does, to all of its group."""
        (os.killpg if group else os.kill)(self.pid, number)

    def wait(self, timeout_s: float = 20.0) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait(timeout_s)

    def end(self) -> None:
        """End it, whatever it takes."""
        if self._process.poll() is None:
            self.signal()
            try:
                self.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self.pid, signal.SIGKILL)
                self.wait()
                raise


def _lives(pid: int) -> bool:
    """Whether the process runs; one that has ended may wait in the table for its parent to take note."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
