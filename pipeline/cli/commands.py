"""Every command: what it is for, examples, and where its work is done. Imports nothing of that."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple, cast

from pipeline.cli import options
from pipeline.cli.parser import Parser

Parse = Callable[[Sequence[str]], argparse.Namespace]
Run = Callable[[argparse.Namespace], int]


class Command(NamedTuple):
    """One command.

    Attributes:
        work: `module:function`, called with the parsed arguments, returns the exit code.
        options: adds its options without importing its work; None = the module's own `add_arguments`.
    """

    name: str
    work: str
    summary: str
    examples: str
    options: Callable[[argparse.ArgumentParser], None] | None = None


_ALL = (
    Command(
        "run",
        "pipeline.cli.run:run",
        "work: all stages, until Ctrl-C",
        """
        tokenweir run
        tokenweir run --workers 4 --redis redis://localhost:6379/0
        tokenweir run --stages classify,gate --pool main
        """,
    ),
    Command(
        "submit",
        "pipeline.cli.submit:run",
        "queue one request, or a file of them",
        """
        tokenweir submit 'Where is my parcel?' --task intent --wait 30
        tokenweir submit - --stream --class interactive < prompt.txt
        tokenweir submit -f requests.jsonl --tenant acme
        """,
        options.add_submit,
    ),
    Command(
        "results",
        "pipeline.cli.results:run",
        "follow the results, as JSON lines",
        """
        tokenweir results
        tokenweir results -o out.jsonl --no-follow
        tokenweir results --group billing --count 100
        """,
        options.add_results,
    ),
    Command(
        "status",
        "pipeline.cli.status:run",
        "where a request is, or how the pool stands",
        """
        tokenweir status
        tokenweir status 4f1c2ab09d --json
        """,
        options.add_status,
    ),
    Command(
        "cancel",
        "pipeline.cli.cancel:run",
        "end requests that nobody wants any more",
        """
        tokenweir cancel 4f1c2ab09d
        tokenweir cancel 4f1c2ab09d 77ab01c3fe --json
        tokenweir cancel - < ids.txt
        """,
        options.add_cancel,
    ),
    Command(
        "stuck",
        "pipeline.cli.stuck:run_stuck",
        "entries in hand whose owner gives no sign of life",
        """
        tokenweir stuck
        tokenweir stuck --stage premium --owner pod-7:12:a1b2c3 --min-idle 0
        tokenweir stuck --deliveries 2 --json
        """,
        options.add_stuck,
    ),
    Command(
        "replay",
        "pipeline.cli.stuck:run_replay",
        "put stuck entries back to work",
        """
        tokenweir replay --all --dry-run
        tokenweir replay --id 4f1c2ab09d
        tokenweir replay --stage edge --min-idle 120
        """,
        options.add_replay,
    ),
    Command(
        "dead",
        "pipeline.cli.dead:run",
        "list, show, replay or drop dead letters",
        """
        tokenweir dead list --reason deliveries
        tokenweir dead replay --all --dry-run
        tokenweir dead drop --older 604800 --dry-run
        """,
        options.add_dead,
    ),
    Command(
        "drain",
        "pipeline.cli.drain:run",
        "take nothing in any more, and wait until all is finished",
        """
        tokenweir drain --timeout 600
        tokenweir drain --open
        """,
        options.add_drain,
    ),
    Command(
        "limits",
        "pipeline.cli.limits:run",
        "what the gate counts with: show it, change it, end a pause",
        """
        tokenweir limits show
        tokenweir limits set primary rpm=400 tpm=none
        tokenweir limits resume primary
        """,
        options.add_limits,
    ),
    Command(
        "check",
        "pipeline.cli.check:run",
        "configuration, Redis, provider, edge: every finding with its cure",
        """
        tokenweir check
        tokenweir check --offline --workers 12
        tokenweir check --show
        """,
        options.add_check,
    ),
    Command(
        "plan",
        "pipeline.cli.plan:run",
        "prove a configuration in virtual time, against every way of counting",
        """
        tokenweir plan
        tokenweir plan --all-modes --json
        tokenweir plan --traffic requests.jsonl --plot plan.svg
        """,
    ),
    Command(
        "sandbox",
        "pipeline.cli.sandbox:run",
        "the simulated OpenAI and Ollama servers alone",
        """
        tokenweir sandbox --port 8000 --edge-port 11434
        tokenweir sandbox --rpm 60 --tpm 6000 --enforcement bucket
        """,
    ),
    Command(
        "demo",
        "pipeline.demo:run",
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
    module, _, function = command.work.partition(":")
    add = command.options or import_module(module).add_arguments
    add(parser)
    return parser.parse_args, lambda: cast("Run", getattr(import_module(module), function))


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
