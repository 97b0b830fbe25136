"""A server that says exactly what a test tells it to, for the real clients to call over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from aiohttp import web

from pipeline.message import Request, encode
from pipeline.stage import Delivery

MESSAGES = [{"role": "user", "content": "Where is my parcel?"}]


class Call(msgspec.Struct, frozen=True):
    """One HTTP call as the server saw it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What to say. `silent`: nothing at all. `hold`: wait for it after the first piece. `cut`: reset at the end."""

    pieces: tuple[bytes, ...] = ()
    status: int = 200
    headers: dict[str, str] = {}
    silent: bool = False
    hold: asyncio.Event | None = None
    cut: bool = False


class Script:
    """Says the replies in their order, the last one again and again, and keeps the calls."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.called = asyncio.Event()
        self.peers: set[object] = set()
        self.url = ""
        self._replies: list[Reply] = []

    def say(
        self,
        *pieces: bytes,
        status: int = 200,
        content_type: str = "text/event-stream",
        headers: dict[str, str] | None = None,
        silent: bool = False,
        hold: asyncio.Event | None = None,
        cut: bool = False,
    ) -> None:
        """Add a reply."""
        named = {"content-type": content_type, **(headers or {})}
        self._replies.append(Reply(pieces=pieces, status=status, headers=named, silent=silent, hold=hold, cut=cut))

    def forget(self) -> None:
        """Drop all replies and calls."""
        self._replies.clear()
        self.calls.clear()
        self.called.clear()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.calls.append(Call(request.path, headers, await request.json()))
        self.called.set()
        if request.transport:
            self.peers.add(request.transport.get_extra_info("peername"))
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if reply.silent:
            await asyncio.Event().wait()
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        with suppress(ConnectionError):  # the client may have hung up
            await response.prepare(request)
            for number, piece in enumerate(reply.pieces):
                if number and reply.hold:
                    await reply.hold.wait()
                await response.write(piece)
            if not reply.cut:
                await response.write_eof()
            elif request.transport:
                request.transport.close()
        return response


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    script = Script()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", script.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.01, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    script.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield script
    await runner.cleanup()


Deliver = Callable[..., Delivery]


@pytest.fixture
def deliver() -> Deliver:
    """Builds a delivery; `body` adds to the chat, all else to the request. Deltas go to `emit`."""

    def build(
        body: dict[str, Any] | None = None,
        *,
        deployment: str = "primary",
        waited_ms: float = 5,
        emit: Callable[[str], None] = lambda _text: None,
        **fields: Any,
    ) -> Delivery:
        chat = {"messages": MESSAGES, "max_tokens": 20, **(body or {})}
        fields = {"id": "r1", "prompt_tokens": 7, "output_tokens": 20, **fields}
        request = Request(body=msgspec.Raw(msgspec.json.encode(chat)), **fields)
        return Delivery(
            entry_id="1-0",
            lane="premium",
            fields={b"request": encode(request)},
            deployment=deployment,
            waited_ms=waited_ms,
            emit=emit,
        )

    return build
