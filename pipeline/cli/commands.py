"""Every command: what it is for, examples, and where its work is done. Imports nothing of that."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple, cast

from pipeline.cli.parser import Parser

Parse = Callable[[Sequence[str]], argparse.Namespace]
Run = Callable[[argparse.Namespace], int]


class Command(NamedTuple):
    """One command.

    Attributes:
        module: has `run(args) -> int`, and `add_arguments(parser)` where there are no `options`.
        options: adds its options without importing its work.
    """

    name: str
    module: str
    summary: str
    examples: str
    options: Callable[[argparse.ArgumentParser], None] | None = None


_ALL = (
    Command(
        "run",
        "pipeline.cli.run",
        "work: all stages, until Ctrl-C",
        """
        tokenweir run
        tokenweir run --workers 4 --redis redis://localhost:6379/0
        tokenweir run --stages classify,gate --pool main
        """,
    ),
    Command(
        "sandbox",
        "pipeline.cli.sandbox",
        "the simulated OpenAI and Ollama servers alone",
        """
        tokenweir sandbox --port 8000 --edge-port 11434
        tokenweir sandbox --rpm 60 --tpm 6000 --enforcement bucket
        """,
    ),
    Command(
        "demo",
        "pipeline.demo",
        "everything at once, simulated, with and without tokenweir",
        """
        tokenweir demo
        tokenweir demo --json
        """,
    ),
)
COMMANDS = {command.name: command for command in _ALL}


def load(command: Command) -> tuple[Parse, Callable[[], Run]]:
    """How to parse the command's words, and how to get at its work once they are parsed."""
    parser = Parser(
        prog=f"tokenweir {command.name}",
        description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        examples=_dedent(command.examples),
    )
    add = command.options or import_module(command.module).add_arguments
    add(parser)
    return parser.parse_args, lambda: cast("Run", import_module(command.module).run)


def overview() -> str:
    """What `tokenweir --help` says."""
    width = max(map(len, COMMANDS))
    lines = [f"  {command.name:<{width}}  {command.summary}" for command in _ALL]
    return _OVERVIEW.format(commands="\n".join(lines))


def unknown(word: str) -> str:
    """What to say of a command that there isn't, with the nearest one there is."""
    import difflib

    near = difflib.get_close_matches(word, COMMANDS, n=1)
    return f"no command {word!r}" + (f"; did you mean {near[0]!r}?" if near else "") + "; see `tokenweir --help`"


def _dedent(examples: str) -> str:
    return textwrap.indent(textwrap.dedent(examples).strip(), "  ")


_OVERVIEW = """\
usage: tokenweir COMMAND [options]

Keeps many LLM workers under one provider's rate limits.

commands:
{commands}

examples:
  tokenweir demo                                 see it work, nothing needed
  tokenweir run                                  a worker, with embedded Redis
  tokenweir submit 'Where is my parcel?' --task intent --wait 30

`tokenweir COMMAND --help` shows a command's options. `tokenweir --version`.
Exit codes: 0 ok, 1 a promise broken or a request failed, 2 usage or
configuration, 3 Redis unreachable.
"""
