"""A time limit for what is awaited, light enough for every call."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Within:
    """`asyncio.timeout` at a third of its price, which is a fifth of what a call costs here: no coroutines of its own.

    The block ends with a TimeoutError after so long; another cancellation of the task passes through it.
    """

    __slots__ = ("_before", "_expired", "_task", "_timeout_s", "_timer")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("calls to Redis are made by tasks")
        self._task, self._before = task, task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._expired and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()
