"""argparse with our manners: errors are one line that says what to do, examples stay as they were typed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn


class UsageError(Exception):
    """What was typed can't be understood; the text says what to type instead. Exit code 2."""


class Parser(argparse.ArgumentParser):
    """A parser that raises `UsageError` where argparse prints its usage and exits."""

    def __init__(self, *, prog: str, description: str = "", examples: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError`."""
        raise UsageError(f"{message}; see `{self.prog} --help`")


def add_target(parser: argparse.ArgumentParser) -> None:
    """The options of every command that talks to Redis; `pipeline.cli.target.resolve` reads them."""
    group = parser.add_argument_group("where")
    group.add_argument("--redis", metavar="URL", help="default: REDIS_URL, else the configuration's, else embedded:")
    group.add_argument("--pool", metavar="NAME", help="default: the first one configured")
    group.add_argument("--config", metavar="FILE", type=Path, help="default: TOKENWEIR_CONFIG, else tokenweir.toml")
