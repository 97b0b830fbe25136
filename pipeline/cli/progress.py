"""What people see of long work, on stderr: a bar on a terminal, and lines that matter anywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Board:
    """What is shown of one piece of work. Made by `board`."""

    def __init__(
        self, what: str, note: Callable[[str], None], advance: Callable[[int], None], show: Callable[[str], None]
    ) -> None:
        self._what = what
        self._note = note
        self._advance = advance
        self._show = show

    def note(self, text: str) -> None:
        """A line that stays."""
        self._note(f"tokenweir: {text}")

    def advance(self, steps: int) -> None:
        """So many more are done."""
        self._show(self._what)
        self._advance(steps)

    def wait(self, why: str) -> None:
        """Nothing moves for now."""
        self._show(why)


@contextmanager
def board(what: str, total: int | None) -> Iterator[Board]:
    """A board for `total` steps of `what`, None = nobody knows; the bar goes when the block ends."""
    if not sys.stderr.isatty():
        yield Board(what, _line, lambda _steps: None, lambda _text: None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(what, total=total)
        yield Board(
            what,
            lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True),
            lambda steps: progress.advance(bar, steps),
            lambda text: progress.update(bar, description=text),
        )


def _line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
