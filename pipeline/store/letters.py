"""Dead letters: looking at them, dropping them, and opening a numbered second life for them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence

import msgspec

from lua import load
from pipeline.intake import FIELDS
from pipeline.message import Request, decode, encode
from tokenweir.connection import Argument, Call, Connection
from tokenweir.keys import INGEST_LANES, valid_id

_REPLAY = load("dead_replay")
_PAGE = 200
_FIELD = b"field:"
# More than a script can write; then those that nobody reads are left out.
_MOST_FIELDS = 3000


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

    async def next_lives(self, letters: Sequence[Letter]) -> list[tuple[Letter, int]]:
        """The number of each one's next life: above every life of its request that was opened or has its result."""
        status = self._connection.keys.status
        words = [("HMGET", status(letter.id), "replay", "terminal") for letter in letters]
        opened = await self._connection.commands(words) if words else []
        numbers: dict[str, int] = {}
        for letter, known in zip(letters, opened, strict=True):
            lived = letter.request.replay if letter.request else _number(letter.fields.get(b"replay"))
            numbers[letter.id] = max(numbers.get(letter.id, 0), lived, *map(_number, known))
        lives = []
        for letter in letters:  # a request may have died in several of its lives
            numbers[letter.id] += 1
            lives.append((letter, numbers[letter.id]))
        return lives

    async def replay(self, letters: Sequence[Letter]) -> list[tuple[Letter, int]]:
        """Put requests back in under their next numbers, in one round trip; 0 = the letter has gone meanwhile.

        Raises:
            ValueError: one has no `target`; nothing was done.
            StoreUnavailable: Redis didn't answer or refused: some may be back in. Again is harmless.
        """
        for letter in letters:
            if not letter.target:
                raise ValueError(f"{letter.letter} holds no request that could be replayed")
        keys, calls, lives = self._connection.keys, [], await self.next_lives(letters)
        for letter, number in lives:
            request = letter.request
            raw = letter.fields.get(b"metadata", b"{}")
            told = (int(request.stream), bytes(request.metadata)) if request else (0, raw)
            args: list[Argument] = [letter.letter, number, *told]
            for name, value in _next_fields(letter, number).items():
                args += (name, value)
            calls.append(Call({"<status>": keys.status(letter.id), "<target>": keys.key(letter.target)}, args))
        entries = await self._connection.run_many(_REPLAY, calls)
        return [(letter, number if entry else 0) for (letter, number), entry in zip(lives, entries, strict=True)]


def _next_fields(letter: Letter, number: int) -> dict[bytes, bytes]:
    """The fields of the new entry: as they were, but for the number of the life, and with an id of its own."""
    if letter.request is not None and letter.stream not in INGEST_LANES:
        return {b"request": encode(msgspec.structs.replace(letter.request, replay=number, attempt=1))}
    fields = letter.fields
    if len(fields) > _MOST_FIELDS:
        fields = {name: value for name, value in fields.items() if name in FIELDS}
    # Without a readable id the old entry's stood for it; the new entry must not get another.
    return {**fields, b"id": letter.id.encode(), b"replay": str(number).encode()}


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
        fields=_whole(fields),
    )


def _whole(fields: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The original fields: each behind a prefix, or, of an entry with thousands, as one list of names and values."""
    if b"fields" not in fields:
        return {name.removeprefix(_FIELD): value for name, value in fields.items() if name.startswith(_FIELD)}
    # Redis writes bytes that are no text into it as they are; `json` reads them so, msgspec doesn't.
    flat = [_bytes(part) for part in json.loads(fields[b"fields"].decode(errors="surrogateescape"))]
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _number(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0
