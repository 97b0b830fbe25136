"""A whole tokenweir installation in a temporary folder: its configuration, its Redis, its worker processes."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pipeline.demo.children import DemoFailed, end_children, last_words, start_child
from pipeline.demo.story import SIMPLE_TASKS, Story
from pipeline.demo.watch import Ledger, provider
from pipeline.embedded import EmbeddedError, ensure
from pipeline.sandbox.ready import Ready
from pipeline.sandbox.settings import SandboxSettings
from tokenweir.connection import Connection, connect
from tokenweir.keys import Keys

_GROUPS = 3  # supervisors, as pods would be
_READY_S = 40.0
_GRACE_S = 6.0
_SERVER_END_S = 5.0
_LOOK_S = 0.05


def configuration(story: Story, ready: Ready, *, edge_model: str) -> str:
    """`tokenweir.toml` for the story's provider account and edge server."""
    return f"""
[pools.main]
lease_s = 5.0
drain_s = 3.0

[[pools.main.deployments]]
name = "primary"
base_url = {json.dumps(ready.premium)}
api_key = "sandbox"
model = "gpt-4o"
rpm = {story.rpm}
tpm = {story.tpm}
window_s = {story.minute_s!r}
send_within_s = {story.late_s / story.time_scale!r}

[pools.main.edge]
base_url = {json.dumps(ready.edge)}
model = {json.dumps(edge_model)}
tasks = {json.dumps(SIMPLE_TASKS)}
concurrency = 1
"""


@asynccontextmanager
async def private_redis(folder: Path) -> AsyncIterator[str]:
    """The URL of a fresh embedded server in `folder`; on leaving it has ended, unless it takes too long.

    Raises:
        DemoFailed: there is no server to start, or it failed.
    """
    try:
        server = await asyncio.to_thread(ensure, folder)
    except EmbeddedError as error:
        raise DemoFailed(str(error)) from error
    try:
        yield server.url
    finally:
        server.release()
        deadline_s = time.monotonic() + _SERVER_END_S
        while _lives(server.pid) and time.monotonic() < deadline_s:  # noqa: ASYNC110 - no event tells of its end
            await asyncio.sleep(_LOOK_S)
        if server.socket_path.parent != folder:
            with suppress(OSError):  # not empty: the server still lives
                server.socket_path.parent.rmdir()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Installation(NamedTuple):
    """A running installation: its provider's books, its Redis, its workers."""

    ledger: Ledger
    url: str
    connection: Connection
    workers: "Workers"


@asynccontextmanager
async def installation(story: Story) -> AsyncIterator[Installation]:
    """Everything that the second run needs, working, with a fresh provider; ended and removed on leaving.

    Raises:
        DemoFailed: a part of it didn't come up; with its last words.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="tokenweir-demo-", ignore_cleanup_errors=True)))
        ready, ledger = await stack.enter_async_context(provider(story))
        url = await stack.enter_async_context(private_redis(folder / "redis"))
        connection = Connection(connect(url), Keys())
        stack.push_async_callback(connection.aclose)
        workers = Workers(folder, story)
        stack.push_async_callback(workers.end)
        await workers.start(configuration(story, ready, edge_model=SandboxSettings().edge_model), url)
        await workers.ready(connection)
        yield Installation(ledger, url, connection, workers)


class Workers:
    """The worker processes, in groups of one supervisor each.

    Args:
        folder: for the configuration and what the groups say.
    """

    def __init__(self, folder: Path, story: Story) -> None:
        self._folder = folder
        self._count = story.workers
        self._groups: list[asyncio.subprocess.Process] = []

    async def start(self, configured: str, redis_url: str) -> None:
        """Start them; they need a few seconds until they work."""
        file = self._folder / "tokenweir.toml"
        file.write_text(configured)
        each = str(self._count // _GROUPS)
        for number in range(_GROUPS):
            options = ("run", "--workers", each, "--config", str(file), "--redis", redis_url)
            self._groups.append(await start_child("pipeline.cli", *options, said=self._said(number)))

    async def ready(self, connection: Connection) -> None:
        """Return when all of them have offered their slots to the gate.

        Raises:
            DemoFailed: a group ended, or it took too long; with the last words of the first such group.
        """
        slots = connection.keys.key("slots")
        deadline_s = time.monotonic() + _READY_S
        while (offered := int(await connection.command("HLEN", slots))) < self._count:
            self.check()
            if time.monotonic() > deadline_s:
                raise DemoFailed(
                    f"only {offered} of {self._count} workers were ready within {_READY_S:g} s;"
                    f" the first group said:\n{last_words(self._said(0))}"
                )
            await asyncio.sleep(_LOOK_S)

    def check(self) -> None:
        """Raise DemoFailed if a group has ended by itself."""
        for number, group in enumerate(self._groups):
            if group.returncode is not None:
                words = last_words(self._said(number))
                raise DemoFailed(f"a group of workers ended with code {group.returncode}:\n{words}")

    async def end(self) -> None:
        """End them in order: they finish what is in hand."""
        groups, self._groups = self._groups, []
        await end_children(groups, grace_s=_GRACE_S)

    def _said(self, number: int) -> Path:
        return self._folder / f"workers-{number + 1}.log"
