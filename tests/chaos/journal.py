"""What a Redis server itself wrote down of a pool: who was granted, who took what in hand, what was put off.

Its append-only file holds the effects of every script, in their order. Nothing of a worker is asked: a worker that was
killed can't say what it did, and one that is wrong may say what it likes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from hiredis import Reader

from tokenweir.keys import MODEL_LANES, Keys

_CHUNK_BYTES = 1 << 20
_ENTRY_ID = re.compile(rb"\d+-\d+\Z")


class Start(NamedTuple):
    """A grant that was started: for this attempt of a request one call may be made, from `at_s` on (Redis's clock)."""

    number: str
    id: str
    attempt: int
    at_s: float


class Loss(NamedTuple):
    """An entry before a model that one worker had in hand and another took over."""

    id: str
    lane: str
    holder: int
    at_s: float


class _Request(msgspec.Struct):
    id: str


class Journal:
    """The append-only file in the folder of a server, read on with every `read`.

    Attributes:
        starts, losses: in the order in which they happened.
        granted: all grants, started or not, by their number.
        deferred: ids that the gate put off, or that came back to the backlog.
        results: how often a terminal result was written, by request id and replay.
    """

    def __init__(self, folder: Path, keys: Keys) -> None:
        self.starts: list[Start] = []
        self.losses: list[Loss] = []
        self.granted: set[str] = set()
        self.deferred: set[str] = set()
        self.results: dict[tuple[str, str], int] = {}
        self._started: set[str] = set()  # whoever asks again for want of a reply starts the same grant
        self._folder, self._read_up_to = folder, 0
        self._reader = Reader()
        self._lanes = {keys.key(lane).encode(): lane for lane in MODEL_LANES}
        self._requests: dict[tuple[str, bytes], str] = {}  # what an entry carries, by lane and entry id
        self._holders: dict[tuple[str, bytes], int] = {}  # the pid that has it in hand
        self._grants, self._responses = keys.key("grants").encode(), keys.key("responses").encode()
        self._backlog = keys.key("backlog:meta").encode()

    def read(self) -> Journal:
        """Take in what has been written since the last time."""
        for words in self._commands():
            name = words[0].upper()
            if name == b"HSET" and words[1] == self._grants:
                self._take_grants(words[2:])
            elif name == b"XADD":
                self._take_entry(words[1], words[2:])
            elif name == b"XCLAIM" and words[1] in self._lanes:
                self._take_claim(self._lanes[words[1]], words[3], words[5:])
            elif name == b"XDEL" and words[1] in self._lanes:
                for entry in words[2:]:
                    self._requests.pop((self._lanes[words[1]], entry), None)
                    self._holders.pop((self._lanes[words[1]], entry), None)
            elif name in (b"HSET", b"HSETNX") and words[1] == self._backlog:
                self.deferred.update(field.decode() for field in words[2::2])
        return self

    def _commands(self) -> Iterator[Sequence[bytes]]:
        (path,) = (self._folder / "appendonlydir").glob("*.incr.aof")
        with path.open("rb") as file:
            file.seek(self._read_up_to)
            while data := file.read(_CHUNK_BYTES):
                self._read_up_to += len(data)
                self._reader.feed(data)
                while (words := self._reader.gets()) is not False:
                    yield words

    def _take_grants(self, pairs: Sequence[bytes]) -> None:
        for member, text in zip(pairs[::2], pairs[1::2], strict=True):
            number, at_us, *_, started = text.decode().split()
            self.granted.add(number)
            if started == "1" and number not in self._started:
                self._started.add(number)
                id_, _, attempt = member.decode().rpartition("#")
                self.starts.append(Start(number, id_, int(attempt), int(at_us) / 1e6))

    def _take_entry(self, stream: bytes, words: Sequence[bytes]) -> None:
        at = next(at for at, word in enumerate(words) if _ENTRY_ID.match(word))
        fields = dict(zip(words[at + 1 :: 2], words[at + 2 :: 2], strict=True))
        if stream in self._lanes:
            request = msgspec.json.decode(fields[b"request"], type=_Request)
            self._requests[self._lanes[stream], words[at]] = request.id
        elif stream == self._responses:
            life = fields[b"id"].decode(), fields[b"replay"].decode()
            self.results[life] = self.results.get(life, 0) + 1

    def _take_claim(self, lane: str, consumer: bytes, words: Sequence[bytes]) -> None:
        """Deliveries are claims here, too: so does the server tell its journal of them."""
        pid, at_s = int(consumer.split(b":")[1]), int(words[words.index(b"TIME") + 1]) / 1000
        for entry in words[: words.index(b"TIME")]:
            holder = self._holders.get((lane, entry))
            if holder not in (None, pid):
                self.losses.append(Loss(self._requests[lane, entry], lane, holder or 0, at_s))
            self._holders[lane, entry] = pid
