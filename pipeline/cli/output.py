"""How a command speaks: answers and tables on stdout, remarks on stderr, JSON for machines."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence, Set
from typing import Any

import msgspec

from pipeline.config import environment

_GAP = "  "
_SHORTEST = 8
_COLOURS: Mapping[str, str] = {"ok": "32", "warn": "33", "FAIL": "31"}


def say(text: str = "") -> None:
    """One line on stdout."""
    sys.stdout.write(f"{text}\n")


def remark(text: str) -> None:
    """One line on stderr, for people: never part of the answer."""
    sys.stderr.write(f"tokenweir: {text}\n")


def say_json(value: Any) -> None:
    """`value` as one line of JSON on stdout."""
    say(msgspec.json.encode(value).decode())


def say_table(
    names: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: Sequence[str] = (), whole: Sequence[str] = ()
) -> None:
    """Rows under their names; columns in `numbers` stand to the right.

    On a terminal the longest columns, but for those in `whole`, are cut so that a row stays a line; elsewhere
    nothing is cut.
    """
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *texts, strict=True)]
    if sys.stdout.isatty():
        kept = {index for index, name in enumerate(names) if name in (*numbers, *whole)}
        _narrow(widths, kept, shutil.get_terminal_size().columns)
    for line in ([name.upper() for name in names], *texts):
        cells = [
            _cut(cell, width).rjust(width) if name in numbers else _cut(cell, width).ljust(width)
            for name, cell, width in zip(names, line, widths, strict=True)
        ]
        say(_GAP.join(cells).rstrip())


def mark(word: str) -> str:
    """`ok`, `warn` or `FAIL`, coloured where that can be seen."""
    plain = not sys.stdout.isatty() or bool(environment().get("NO_COLOR"))
    return f"{word:<4}" if plain else f"\x1b[{_COLOURS[word]}m{word:<4}\x1b[0m"


def seconds(value: float) -> str:
    """A length of time for people: `0.4 s`, `12 s`, `3 min`, `2.5 h`."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def _text(cell: object) -> str:
    text = f"{cell:,}" if isinstance(cell, int) else str(cell)
    # A table is a line a row, whatever producers put into their ids.
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _narrow(widths: list[int], kept: Set[int], room: int) -> None:
    """Shorten the longest columns, but for those in `kept`, until a line fits or nothing can give way."""
    loose = [index for index in range(len(widths)) if index not in kept]
    while sum(widths) + len(_GAP) * (len(widths) - 1) > room:
        longest = max(loose, key=lambda index: widths[index], default=None)
        if longest is None or widths[longest] <= _SHORTEST:
            return
        widths[longest] -= 1


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
