"""Cancelling requests. One script answers each as cancelled, wherever it stands; see lua/request_cancel.lua."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from lua import load
from tokenweir.connection import Argument, Call, Connection, insist
from tokenweir.errors import RequestError
from tokenweir.wire import Result, error_body, result_fields

_CANCEL = load("request_cancel")
# Few enough that nobody else waits long for Redis meanwhile.
_AT_ONCE: Final = 25
_BODY: Final = msgspec.Raw(error_body("cancelled", "its producer cancelled it"))
# What only the script knows; it says these itself.
_FOUND_OUT: Final = ("route", "attempt", "replay", "metadata", "waited_ms", "total_ms")


async def cancel(connection: Connection, request_ids: Sequence[str]) -> list[Result | None]:
    """The terminal result of each request, `cancelled` unless it had one already; None = the id isn't known.

    Safe to repeat, and repeated where a reply is lost.

    Raises:
        StoreUnavailable: Redis didn't answer; which were cancelled is unknown.
    """
    found: list[Result | None] = []
    for first in range(0, len(request_ids), _AT_ONCE):
        found += await _cancel(connection, request_ids[first : first + _AT_ONCE])
    return found


async def _cancel(connection: Connection, request_ids: Sequence[str]) -> list[Result | None]:
    replies = await _ask(connection, [(each, b"") for each in request_ids])
    # Nobody has looked at these entries yet, so whether their metadata can stand in a result is found out here.
    unchecked = {each: checked(text) for each, (kind, text) in replies.items() if kind == b"metadata"}
    replies |= await _ask(connection, list(unchecked.items()))
    return [_result(each, *replies[each]) for each in request_ids]


async def _ask(connection: Connection, asked: Sequence[tuple[str, bytes]]) -> dict[str, tuple[bytes, bytes]]:
    bind = connection.keys.status
    calls = [Call({"<status>": bind(each)}, [each, metadata, *told(each)]) for each, metadata in asked]
    replies = await insist(lambda: connection.run_many(_CANCEL, calls))
    return {each: (kind, text) for (each, _), (kind, text) in zip(asked, replies, strict=True)}


def told(request_id: str) -> list[Argument]:
    """A cancelled request's result but for `_FOUND_OUT`: as JSON, then field by field."""
    result = Result(id=request_id, status="cancelled", code="cancelled", body=_BODY)
    whole = msgspec.json.decode(msgspec.json.encode(result), type=dict[str, msgspec.Raw])
    args: list[Argument] = [msgspec.json.encode({name: whole[name] for name in whole if name not in _FOUND_OUT})]
    for name, value in result_fields(result).items():
        if name not in _FOUND_OUT:
            args += (name, value)
    return args


def checked(metadata: bytes) -> bytes:
    """Metadata as it goes back: what is no JSON object would have been refused, and is nothing."""
    try:
        return metadata if isinstance(msgspec.json.decode(metadata), dict) else b"{}"
    except (msgspec.DecodeError, ValueError, RecursionError):
        return b"{}"


def _result(request_id: str, kind: bytes, text: bytes) -> Result | None:
    if kind != b"done":
        return None
    try:
        return msgspec.json.decode(text, type=Result)
    except msgspec.DecodeError as error:
        message = f"the result of request {request_id} isn't readable here: {error}"
        raise RequestError(message, code="internal") from error
