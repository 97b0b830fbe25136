"""Submitting a file of requests: everything that can go in does, however long the queue is full."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from pipeline.cli.output import say
from pipeline.cli.parser import UsageError
from pipeline.cli.progress import Board
from pipeline.cli.request_file import Defaults, Line, read_requests
from tokenweir.client import Client
from tokenweir.draft import Draft
from tokenweir.errors import PoolClosed, QueueFull

_AT_ONCE = 200
_LOOK_AGAIN_S = 2.0


class Bulk:
    """One file on its way in. `bad` counts lines that held no request, `queued` those that did."""

    def __init__(self, client: Client, name: str, board: Board) -> None:
        self._client = client
        self._name = name
        self._board = board
        self._told = False
        self.bad = 0
        self.queued = 0

    async def submit(self, lines: Iterable[bytes], defaults: Defaults) -> None:
        """Queue every request of `lines`, in order; bad lines are named and left out.

        Raises:
            StoreUnavailable: Redis went away. Submitting the file again queues nothing twice.
        """
        batch: list[Draft] = []
        for line in read_requests(lines, defaults):
            if line.draft is None:
                self._complain(line)
                continue
            batch.append(line.draft)
            if len(batch) == _AT_ONCE:
                await self._queue(batch)
                batch = []
        await self._queue(batch)

    def _complain(self, line: Line) -> None:
        self.bad += 1
        self._board.note(f"{self._name} line {line.number}: {line.fault}")
        self._board.advance(1)

    async def _wait(self, full: QueueFull) -> None:
        """Come back when there may be room. Nobody says when a drained pool is opened: look for it now and then."""
        closed = isinstance(full, PoolClosed)
        if closed and not self._told:
            self._told = True
            self._board.note(str(full))
        wait_s = min(full.retry_after_s, _LOOK_AGAIN_S) if closed else full.retry_after_s
        self._board.wait(f"{'pool is drained' if closed else 'queue full'}, again in {wait_s:.0f} s")
        await asyncio.sleep(wait_s)

    async def _queue(self, batch: list[Draft]) -> None:
        """Queue a batch. Drafts keep their ids, so that repeating it after a full queue is harmless."""
        while batch:
            try:
                ids = await self._client.submit_many(batch)
            except QueueFull as full:
                await self._wait(full)
                continue
            self.queued += len(ids)
            self._board.advance(len(ids))
            if not sys.stdout.isatty():
                for request_id in ids:
                    say(request_id)
            return


@contextmanager
def opened_lines(name: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """The lines of a file, `-` = stdin, and how many hold something, where that can be known beforehand.

    Raises:
        UsageError: it can't be read.
    """
    if name == "-":
        yield sys.stdin.buffer, None
        return
    try:
        with open(name, "rb") as file:
            total = sum(1 for line in file if line.strip()) if file.seekable() else None
            if total is not None:
                file.seek(0)
            yield file, total
    except OSError as error:
        raise UsageError(f"can't read {name}: {error.strerror}") from error
