"""Cancels an operation at each of its awaits in turn.

A task can be cancelled before what it waits for has happened, or just after it has, in the moment before it goes on:
then a reply is there that nobody will read, and some libraries take the cancellation for a time-out of their own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from tests.support import eventually

MOST = 400
ENDS_S = 10.0
# Connections that a client may keep in reserve, and what the loop itself opens.
SPARE = 12


class _At:
    """Runs an operation, and cancels its task at the await with this number."""

    def __init__(self, operation: Coroutine[Any, Any, object], number: int, *, late: bool) -> None:
        self._operation, self._number, self._late = operation, number, late
        self.reached = False

    def __await__(self) -> Generator[Any, Any, None]:
        inner, count = self._operation.__await__(), 0
        failure: BaseException | None = None
        while True:
            try:
                waited = inner.send(None) if failure is None else inner.throw(failure)
            except StopIteration:
                return
            if count == self._number:
                self.reached = True
                self._cancel(waited)
            count += 1
            try:
                yield waited
                failure = None
            except BaseException as error:  # it is the operation's, whatever it is
                failure = error

    def _cancel(self, waited: asyncio.Future[Any] | None) -> None:
        task = asyncio.current_task()
        assert task
        if not self._late:
            task.cancel()
        elif waited is None:  # a bare turn of the loop
            asyncio.get_running_loop().call_soon(task.cancel)
        else:
            waited.add_done_callback(lambda _: task.cancel())

    async def run(self) -> None:
        await self


async def sweep(
    operation: Callable[[], Coroutine[Any, Any, object]], usable: Callable[[], Awaitable[object]], *, late: bool
) -> int:
    """Cancel `operation` at every await; each time it must end, cancelled, and `usable` must hold; returns how many.

    Nothing that it opened may stay open.
    """
    await usable()
    opened = _opened()
    for number in range(MOST):
        at = _At(operation(), number, late=late)
        task = asyncio.create_task(at.run())
        done, _ = await asyncio.wait([task], timeout=ENDS_S)
        assert done, f"cancelled at await {number}, it doesn't end: {task.get_stack()}"
        if not at.reached:
            task.result()
            await eventually(lambda: _opened() <= opened + SPARE, why="connections stay open")
            return number
        assert task.cancelled(), f"cancelled at await {number}, it went on: {task.exception()!r}"
        await usable()
    raise AssertionError(f"it has more than {MOST} awaits")


def _opened() -> int:
    """Files and sockets that this process has open."""
    return len(os.listdir("/proc/self/fd"))
