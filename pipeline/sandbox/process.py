"""Starting a sandbox from Python, for tests and the demo: a process that ends with the block, or with its starter."""

import asyncio
import os
import selectors
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from pipeline.sandbox.arguments import arguments_for
from pipeline.sandbox.ready import Ready
from pipeline.sandbox.settings import SandboxSettings

_START_S = 20.0
_END_S = 5.0
_ROOT = Path(__file__).parents[2]  # holds this very `pipeline` package


class SandboxFailed(RuntimeError):
    """The sandbox didn't become ready; its own words went to stderr."""


@contextmanager
def start_sandbox(settings: SandboxSettings, *, start_s: float = _START_S) -> Iterator[Ready]:
    """A running sandbox for the length of the block; blocks for the half second that it needs to start.

    Raises:
        SandboxFailed: it ended, or wasn't ready within `start_s`.
    """
    process = _spawn(settings)
    try:
        yield _ready(process, start_s)
    finally:
        _end(process)


@asynccontextmanager
async def open_sandbox(settings: SandboxSettings, *, start_s: float = _START_S) -> AsyncIterator[Ready]:
    """As `start_sandbox`, with the event loop left free while it starts."""
    process = _spawn(settings)
    try:
        yield await asyncio.to_thread(_ready, process, start_s)
    finally:
        _end(process)


def _spawn(settings: SandboxSettings) -> subprocess.Popen[bytes]:
    settings = msgspec.structs.replace(settings, with_parent=os.getpid())
    # -P and PYTHONPATH: a file named pipeline.py in the working directory must not be taken for this package.
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(  # noqa: S603  # the program is this interpreter, the options are checked settings
        [sys.executable, "-P", "-m", "pipeline.sandbox", *arguments_for(settings)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,  # Ctrl-C is for the starter, which may still have calls to finish
    )


def _ready(process: subprocess.Popen[bytes], start_s: float) -> Ready:
    assert process.stdout is not None
    deadline = time.monotonic() + start_s
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(deadline - time.monotonic()):
                raise SandboxFailed(f"sandbox wasn't ready within {start_s:g} s")
            part = os.read(process.stdout.fileno(), 65536)
            if not part:
                raise SandboxFailed(f"sandbox ended with code {process.wait()} before it was ready")
            line += part
    return msgspec.json.decode(line, type=Ready)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
