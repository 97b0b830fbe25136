"""Pieces of answers on `reply:<id>`: how long they are kept."""

from __future__ import annotations

import msgspec
import pytest

from pipeline.message import Request
from pipeline.store.deltas import Deltas
from tokenweir.connection import Connection

pytestmark = pytest.mark.anyio


async def test_a_piece_that_comes_late_keeps_nothing_for_longer(connection: Connection) -> None:
    """A piece of an answer that is written after the result: the reply is still forgotten with its status."""
    deltas = Deltas(connection)
    emit = deltas.emitter(Request(id="a", body=msgspec.Raw(b"{}"), stream=True))
    emit("It is ")
    await deltas.flush()
    reply = connection.keys.reply("a")
    assert await connection.command("TTL", reply) > 3000

    await connection.command("EXPIRE", reply, 20)  # as the result does
    emit("on its way.")
    await deltas.flush()

    assert await connection.command("XLEN", reply) == 2
    assert await connection.command("TTL", reply) <= 20
