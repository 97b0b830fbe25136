"""Sending answers in time, on both sides. Few timers and writes: the sandbox shares its cores with the engine."""

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from aiohttp import web


async def deliver_stream(
    http: web.Request,
    writes: Sequence[bytes],
    *,
    headers: Mapping[str, str],
    first_s: float,
    step_s: float,
    finish: bool = True,
) -> web.StreamResponse:
    """Send the first write after `first_s` and each further one `step_s` later.

    The times are set from the start, so a late timer delays nothing behind it. Without `finish` the response is left
    open at its end.
    """
    loop = asyncio.get_running_loop()
    due_s = loop.time() + first_s
    response = web.StreamResponse(headers=headers)
    await asyncio.sleep(first_s)
    try:
        await response.prepare(http)
        for number, write in enumerate(writes):
            if number and (wait_s := due_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            if finish and number == len(writes) - 1:
                await response.write_eof(write)
            else:
                await response.write(write)
            due_s += step_s
    except ConnectionResetError:
        await hang()  # the caller has just gone: the server cancels us as soon as it hears of it
    return response


async def deliver_half(http: web.Request, body: bytes, *, headers: Mapping[str, str]) -> web.StreamResponse:
    """Promise the whole body, send half of it and hang up."""
    response = web.StreamResponse(headers={**headers, "content-length": str(len(body))})
    await response.prepare(http)
    await response.write(body[: len(body) // 2])
    hang_up(http)
    return response


def hang_up(http: web.Request) -> None:
    """Tear the connection down, after what was written."""
    if http.transport is not None:
        http.transport.close()


async def hang() -> None:
    """Wait until the caller goes."""
    await asyncio.Event().wait()


def html_page() -> web.Response:
    """What a proxy in front of a provider says on a bad day, with status 200."""
    return web.Response(text="<html><body><h1>Please wait</h1></body></html>", content_type="text/html")


def phrase(status: int) -> str:
    """The usual words for a status."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"Status {status}"
