"""The sandbox as a server: two listening sockets, one line that says it's ready, and a quick end on a signal."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TextIO

from aiohttp import web

from pipeline.sandbox.control import Control
from pipeline.sandbox.ollama_wire import OllamaWire
from pipeline.sandbox.openai_wire import OpenAIWire
from pipeline.sandbox.ready import Latencies, Ready
from pipeline.sandbox.settings import SandboxSettings
from pipeline.sandbox.state import State

_LARGEST_BODY = 64 * 1024 * 1024
_SHUTDOWN_S = 0.1  # calls still open are cut off: nobody waits for a simulated answer
_PR_SET_PDEATHSIG = 1


def run(settings: SandboxSettings) -> int:
    """Serve until SIGTERM, SIGINT or the parent's end; returns the exit code.

    Prints where it listens once it does: a JSON line (see `Ready`), or sentences when stdout is a terminal.
    """
    try:
        return asyncio.run(_serve(settings, sys.stdout))
    except OSError as error:
        sys.stderr.write(f"sandbox can't listen: {error}\n")
        return 1


async def _serve(settings: SandboxSettings, out: TextIO) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if settings.with_parent:
        _end_with(settings.with_parent, loop, stop.set)

    async with serving(settings) as ready:
        print(ready.for_people(settings) if out.isatty() else ready.for_machines(), file=out, flush=True)
        await stop.wait()
    return 0


@asynccontextmanager
async def serving(settings: SandboxSettings) -> AsyncIterator[Ready]:
    """Both sides listening in this event loop for the length of the block; `with_parent` means nothing here."""
    state = State(settings)
    async with (
        _listening([*OpenAIWire(state).routes(), *Control(state).routes()], settings.host, settings.port) as port,
        _listening(OllamaWire(state).routes(), settings.host, settings.edge_port) as edge_port,
    ):
        yield _ready(settings, port, edge_port)


@asynccontextmanager
async def _listening(routes: list[web.RouteDef], host: str, port: int) -> AsyncIterator[int]:
    app = web.Application(client_max_size=_LARGEST_BODY)
    app.add_routes(routes)
    # Cancelling the handler when its caller hangs up frees an edge slot and aborts a model's load, as for real.
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _ready(settings: SandboxSettings, port: int, edge_port: int) -> Ready:
    return Ready(
        premium=f"http://{settings.host}:{port}/v1",
        edge=f"http://{settings.host}:{edge_port}",
        control=f"http://{settings.host}:{port}/sandbox",
        pid=os.getpid(),
        latency=Latencies(
            premium_ttft=settings.premium_latency().measured(settings.seed),
            edge_total=settings.edge_latency().measured(settings.seed),
            tokens_per_second=settings.tokens_per_second,
            time_scale=settings.time_scale,
        ),
    )


def _end_with(parent: int, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call `stop` when the parent process ends, however it ends. Linux only; elsewhere nothing happens."""
    if not sys.platform.startswith("linux"):
        return

    def orphaned() -> None:
        # The kernel sends the signal already when the *thread* that started us ends; then the parent is still there.
        if os.getppid() != parent:
            stop()

    loop.add_signal_handler(signal.SIGUSR1, orphaned)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
    orphaned()  # it may have ended before the call above
