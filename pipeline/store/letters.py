"""Dead letters: looking at them, dropping them, and opening a numbered second life for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from lua import load
from pipeline.message import Request, decode, encode
from tokenweir.connection import Argument, Connection
from tokenweir.keys import INGEST_LANES, valid_id

_REPLAY = load("dead_replay")
_PAGE = 200
_FIELD = b"field:"


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A request that gets no further attempt, kept whole.

    Attributes:
        letter: its own entry id in `dead`. stream, entry: where it stood.
        fields: the original entry's.
    """

    letter: str
    id: str
    stream: str
    entry: str
    reason: str
    message: str
    deliveries: int
    at_ms: int
    fields: dict[bytes, bytes]

    @property
    def request(self) -> Request | None:
        """The request of an inner entry; None where it can't be read, or never got so far."""
        try:
            return decode(self.fields[b"request"])
        except (KeyError, msgspec.DecodeError):
            return None

    @property
    def target(self) -> str:
        """The stream in which its next life begins; empty when there is nothing left to replay."""
        if self.stream in INGEST_LANES:
            return self.stream if self.fields and valid_id(self.id) else ""
        return f"gate:{self.request.priority}" if self.request else ""


class Letters:
    """The dead letters of one pool."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._key = connection.keys.key("dead")

    async def all(self) -> AsyncIterator[Letter]:
        """Every letter, the oldest first."""
        start = "-"
        while True:
            found = await self._connection.command("XRANGE", self._key, start, "+", "COUNT", _PAGE)
            for entry, fields in found:
                yield _letter(entry.decode(), fields)
            if len(found) < _PAGE:
                return
            start = "(" + found[-1][0].decode()

    async def get(self, letter: str) -> Letter | None:
        """One letter by its entry id in `dead`."""
        found = await self._connection.command("XRANGE", self._key, letter, letter)
        return _letter(found[0][0].decode(), found[0][1]) if found else None

    async def drop(self, letters: Sequence[str]) -> int:
        """Delete letters for good; returns how many there were."""
        return int(await self._connection.command("XDEL", self._key, *letters)) if letters else 0

    async def next_life(self, letter: Letter) -> int:
        """The number of its next life: above every life that was opened or has its result."""
        status = self._connection.keys.status(letter.id)
        opened = await self._connection.command("HMGET", status, "replay", "terminal")
        lived = letter.request.replay if letter.request else _number(letter.fields.get(b"replay"))
        return max(lived, *(_number(text) for text in opened)) + 1

    async def replay(self, letter: Letter) -> str:
        """Put the request back in under its next number; returns its new entry, or '' when the letter has gone.

        Raises:
            ValueError: it has no `target`.
        """
        if not letter.target:
            raise ValueError(f"{letter.letter} holds no request that could be replayed")
        number = await self.next_life(letter)
        request = letter.request
        raw = letter.fields.get(b"metadata", b"{}")
        told = (int(request.stream), bytes(request.metadata)) if request else (0, raw)
        args: list[Argument] = [letter.letter, number, *told]
        for name, value in _next_fields(letter, number).items():
            args += (name, value)
        keys = self._connection.keys
        bind = {"<status>": keys.status(letter.id), "<target>": keys.key(letter.target)}
        entry: bytes = await self._connection.run(_REPLAY, args, bind=bind)
        return entry.decode()


def _next_fields(letter: Letter, number: int) -> dict[bytes, bytes]:
    """The fields of the new entry: as they were, but for the number of the life, and with an id of its own."""
    if letter.request is not None and letter.stream not in INGEST_LANES:
        return {b"request": encode(msgspec.structs.replace(letter.request, replay=number, attempt=1))}
    # Without a readable id the old entry's stood for it; the new entry must not get another.
    return {**letter.fields, b"id": letter.id.encode(), b"replay": str(number).encode()}


def _letter(letter: str, fields: dict[bytes, bytes]) -> Letter:
    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="replace")

    return Letter(
        letter=letter,
        id=text(b"id"),
        stream=text(b"stream"),
        entry=text(b"entry"),
        reason=text(b"reason"),
        message=text(b"message"),
        deliveries=_number(fields.get(b"deliveries")),
        at_ms=_number(fields.get(b"at_ms")),
        fields={name.removeprefix(_FIELD): value for name, value in fields.items() if name.startswith(_FIELD)},
    )


def _number(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0
