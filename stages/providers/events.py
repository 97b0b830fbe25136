"""Server-sent events out of bytes as they arrive.

Pure. Only what chat completions need: `data` and `event`; comments (keep-alives) and other fields are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode
# Half a surrogate pair as JSON escape: some servers cut text within a character.
_half = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


class Events:
    """Splits a stream into events, wherever the network cut it."""

    def __init__(self) -> None:
        # The rest of a line that hasn't ended yet, and the event being read; the one reader's own.
        self._rest = b""
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The events that `piece` completes, as (name, data); the name is mostly empty."""
        lines = (self._rest + piece if self._rest else piece).splitlines(keepends=True)
        # A line that ends in \r may go on with \n in the next piece.
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        for line in lines:
            yield from self._line(line.rstrip(b"\r\n"))

    def end(self) -> Iterator[tuple[bytes, bytes]]:
        """What an unfinished last line and event still hold; servers that forget the last blank line exist."""
        yield from self._line(self._rest.rstrip(b"\r\n"))
        self._rest = b""
        yield from self._line(b"")

    def _line(self, line: bytes) -> Iterator[tuple[bytes, bytes]]:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line.startswith(b"event:"):
            self._name = line[6:].strip()
        elif not line:
            if self._data:
                yield self._name, b"\n".join(self._data)
                self._data = []
            self._name = b""


def decode(raw: bytes) -> Any:
    """`raw` as plain values; broken characters become U+FFFD.

    Raises:
        ValueError: it isn't JSON.
    """
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        mended = _half.sub(rb"\\ufffd", raw).decode(errors="replace").encode()
    try:
        return _decode(mended)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
