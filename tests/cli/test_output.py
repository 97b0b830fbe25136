"""Tables, as people see them."""

from __future__ import annotations

import io
import os
import sys

import pytest

from pipeline.cli.output import say_table

_NAMES = ("letter", "request", "message")
_ROW = ("1753360000000-0", "r" * 60, "it is dead, " * 20)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_row_is_a_line_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal long columns are cut to its width, but never the ids that commands take."""
    seen = _Terminal()
    monkeypatch.setattr(sys, "stdout", seen)
    monkeypatch.setitem(os.environ, "COLUMNS", "80")

    say_table(_NAMES, [_ROW], whole=("letter",))

    lines = seen.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("1753360000000-0  rrr")


def test_nothing_is_cut_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pipe every cell is whole, and a row is a line whatever a producer put into it."""
    seen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", seen)

    say_table(_NAMES, [_ROW, ("1-1", "two\nlines\x1b[31m", "")])

    lines = seen.getvalue().splitlines()
    assert "r" * 60 in lines[1]
    assert len(lines) == 3
    assert "\x1b" not in lines[2]
