"""A network that fails on command: stands before a Redis or a provider, and passes on what it is told to.

It runs in a thread of its own, so that synchronous and asynchronous tests use it alike; every order holds when its
method returns. What it does is what networks do: a stream never has a gap, so a connection that lost bytes breaks
before it carries any that came later.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

Direction = Literal["requests", "replies"]
BOTH: tuple[Direction, ...] = ("requests", "replies")
_CHUNK_BYTES = 65_536


class _Way:
    """What is done to the bytes of one direction, on every connection."""

    def __init__(self) -> None:
        self.swallowed = False
        self.delay_s = 0.0
        self.chunk_bytes = _CHUNK_BYTES
        self.open = asyncio.Event()  # clear = bytes are held back
        self.open.set()
        self.heard = asyncio.Event()  # clear = not even the end of a connection arrives
        self.heard.set()


class _Link:
    """One connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.pumps: list[asyncio.Task[None]] = []
        self.target: asyncio.StreamWriter | None = None
        self.stranded = False  # whatever comes is swallowed, on this connection alone
        self.torn = False  # bytes of it were swallowed
        self.left: int | None = None  # reply bytes that it still passes on before it breaks; None = all
        self.broken = False

    def break_(self) -> None:
        """End both sides at once, as a reset does; what is on its way is lost."""
        self.broken = True
        for writer in (self.client, self.target):
            if writer is not None:
                writer.transport.abort()
        for pump in self.pumps:
            pump.cancel()


class Proxy:
    """Forwards loopback TCP to `port`, faithfully until told otherwise. Use it as a context manager.

    Attributes:
        port: where it listens.
        opened: connections that it took, those that it cut at once included.
        broken: connections that it broke.
        swallowed_bytes: what it let vanish.
    """

    def __init__(self, port: int) -> None:
        self.port = 0
        self.opened = self.broken = self.swallowed_bytes = 0
        self._target = port
        self._down = False
        self._lose = 0  # connections that are still to lose their next reply, after so many bytes of it
        self._lose_after = 0
        self._links: set[_Link] = set()
        self._ways: dict[Direction, _Way] = {}
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), name="fault-proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        self._listens.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """It, as the address of a Redis."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def live(self) -> int:
        """Connections that are open now."""
        return len(self._links)

    # Orders

    def cut(self) -> None:
        """Break every connection, and each new one at once."""

        def now() -> None:
            self._down = True
            self._break_all()

        self._order(now)

    def break_all(self) -> None:
        """Break every connection that is open now; new ones pass."""
        self._order(self._break_all)

    def lose_replies(self, count: int = 1, *, after_bytes: int = 0) -> None:
        """On the next `count` connections that are replied to: pass on so many bytes of the reply, then break."""

        def now() -> None:
            self._lose, self._lose_after = count, after_bytes

        self._order(now)

    def swallow(self, *directions: Direction) -> None:
        """Let vanish what comes; connections stay open, and even their end isn't told. By default both ways."""

        def now() -> None:
            for direction in directions or BOTH:
                self._ways[direction].swallowed = True
                self._ways[direction].heard.clear()

        self._order(now)

    def strand(self) -> None:
        """Swallow both ways of the connections that are open now; new ones pass."""

        def now() -> None:
            for link in self._links:
                link.stranded = True

        self._order(now)

    def hold(self, *directions: Direction) -> None:
        """Keep back what comes until `release`, by default both ways."""

        def now() -> None:
            for direction in directions or BOTH:
                self._ways[direction].open.clear()

        self._order(now)

    def release(self) -> None:
        """Let go on what was held back, in its order."""

        def now() -> None:
            for way in self._ways.values():
                way.open.set()

        self._order(now)

    def slow(self, delay_s: float, *directions: Direction, chunk_bytes: int = _CHUNK_BYTES) -> None:
        """Pass on so many bytes at a time, each after `delay_s`, by default both ways."""

        def now() -> None:
            for direction in directions or BOTH:
                self._ways[direction].delay_s, self._ways[direction].chunk_bytes = delay_s, chunk_bytes

        self._order(now)

    def mend(self) -> None:
        """Pass on everything from now on, faithfully; connections that lost something break."""

        def now() -> None:
            self._down, self._lose = False, 0
            for way in self._ways.values():
                way.swallowed, way.delay_s, way.chunk_bytes = False, 0.0, _CHUNK_BYTES
                way.open.set()
                way.heard.set()
            for link in tuple(self._links):
                if link.torn or link.stranded:
                    self._break(link)

        self._order(now)

    def retarget(self, port: int) -> None:
        """Lead new connections elsewhere, as a changed DNS entry does; open ones stay where they are."""
        self._target = port

    def _order(self, act: Callable[[], object]) -> None:
        """Have `act` done in the proxy's thread; it is done when this returns."""
        done = threading.Event()

        def now() -> None:
            act()
            done.set()

        self._loop.call_soon_threadsafe(now)
        done.wait()

    # In the thread

    async def _run(self) -> None:
        self._ways = {direction: _Way() for direction in BOTH}
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._listens.set()
        await self._ended.wait()
        server.close()
        self._down = True  # for those that are being accepted just now
        self._break_all()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    def _break_all(self) -> None:
        for link in tuple(self._links):
            self._break(link)

    def _break(self, link: _Link) -> None:
        self.broken += not link.broken
        link.break_()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        link = _Link(writer)
        self._links.add(link)
        try:
            if self._down:
                self._break(link)
                return
            target_reader, link.target = await asyncio.open_connection("127.0.0.1", self._target)
            if link.broken:
                return
            async with asyncio.TaskGroup() as group:
                link.pumps.append(group.create_task(self._pump(link, "requests", reader, link.target)))
                link.pumps.append(group.create_task(self._pump(link, "replies", target_reader, writer)))
        except OSError:
            pass  # nobody listens there: the client sees its connection end
        except asyncio.CancelledError:
            if not link.broken:  # else it was for us, and Python 3.11 complains of a server's task that ends cancelled
                raise
        finally:
            self._links.discard(link)
            for side in (writer, link.target):
                if side is not None:
                    side.close()

    async def _pump(
        self, link: _Link, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass on one direction until it ends; what was sent before an end still arrives."""
        way = self._ways[direction]
        with suppress(OSError):
            while (data := await reader.read(_CHUNK_BYTES)) and not link.broken:
                while data:
                    part, data = data[: way.chunk_bytes], data[way.chunk_bytes :]
                    await self._pass_on(link, direction, part, writer)
            await way.open.wait()
            await way.heard.wait()
            if link.stranded:
                await self._ended.wait()
            if link.torn:
                self._break(link)
            elif writer.can_write_eof() and not writer.is_closing():
                writer.write_eof()

    async def _pass_on(self, link: _Link, direction: Direction, part: bytes, writer: asyncio.StreamWriter) -> None:
        way = self._ways[direction]
        if way.delay_s:
            await asyncio.sleep(way.delay_s)
        await way.open.wait()
        if way.swallowed or link.stranded:
            link.torn = True
            self.swallowed_bytes += len(part)
            return
        if link.torn:
            self._break(link)
            return
        if direction == "replies":
            part = self._spared(link, part)
        if part:
            writer.write(part)
            await writer.drain()
        if link.left == 0:
            self._break(link)

    def _spared(self, link: _Link, part: bytes) -> bytes:
        """What of a reply is passed on."""
        if link.left is None and self._lose:
            self._lose -= 1
            link.left = self._lose_after
        if link.left is not None:
            part = part[: link.left]
            link.left -= len(part)
        return part
