"""The options of every command, in one place and light to import: parsing a line loads no command's work."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from pipeline.cli.parser import add_target
from tokenweir.durability import Durability
from tokenweir.keys import CLASSES, GROUPS

_STAGES = tuple(dict.fromkeys(GROUPS.values()))


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


# argparse names the type in its errors: "invalid number of seconds value: 'x'".
_positive.__name__ = _not_negative.__name__ = "number of seconds"
_count.__name__ = "count"


def add_submit(parser: argparse.ArgumentParser) -> None:
    """`submit`."""
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt; - reads it from stdin")
    parser.add_argument("-f", "--file", metavar="FILE", help="a request a line, as JSON; - reads them from stdin")
    parser.add_argument("--task", default="", help="what it is for, e.g. intent; decides simple or complex")
    parser.add_argument("--tenant", default="", help="on whose behalf (default: default)")
    parser.add_argument(
        "--class",
        dest="priority",
        choices=CLASSES,
        help="how urgent (default: interactive; with --file: batch)",
    )
    parser.add_argument("--complexity", choices=("simple", "complex"), help="overrides the classifier")
    parser.add_argument("--max-wait", type=_positive, metavar="S", help="never started after so many seconds")
    parser.add_argument("--id", default="", help="an id of your own: submitting it twice is harmless")
    parser.add_argument(
        "--durability",
        choices=get_args(Durability),
        default="aof",
        help="succeed only once a replica has it, or the primary's disk (fsync); default: aof, no wait",
    )
    parser.add_argument("--wait", type=_positive, metavar="S", help="wait so long for the answer and print it")
    parser.add_argument("--stream", action="store_true", help="print the answer as it comes")
    parser.add_argument("--json", action="store_true", help="print the whole result, not only the answer's text")
    add_target(parser)


def add_results(parser: argparse.ArgumentParser) -> None:
    """`results`."""
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="append there; goes on behind its last line")
    parser.add_argument("--count", type=_count, metavar="N", help="end after N results")
    parser.add_argument(
        "--follow",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait for more at the end (default: --follow)",
    )
    parser.add_argument("--after", metavar="ENTRY", help="begin behind this entry; `new` = only what comes from now on")
    parser.add_argument("--group", metavar="NAME", help="share the results among all who read as this group")
    add_target(parser)


def add_status(parser: argparse.ArgumentParser) -> None:
    """`status`."""
    parser.add_argument("id", nargs="?", metavar="ID", help="a request; without it, the pool")
    parser.add_argument("--json", action="store_true", help="for machines")
    add_target(parser)


def add_cancel(parser: argparse.ArgumentParser) -> None:
    """`cancel`."""
    parser.add_argument("ids", nargs="+", metavar="ID", help="requests; a single - reads them from stdin, one a line")
    parser.add_argument("--json", action="store_true", help="the terminal result of each, one JSON object a line")
    add_target(parser)


def _add_entries(parser: argparse.ArgumentParser) -> None:
    """Which entries in hand are meant."""
    which = parser.add_argument_group("which; all that is given must hold")
    which.add_argument("--id", action="append", metavar="ID", help="this request; may be repeated")
    which.add_argument("--entry", action="append", metavar="ENTRY", help="this entry; may be repeated")
    which.add_argument("--stage", choices=_STAGES, help="entries of this stage")
    which.add_argument("--owner", metavar="NAME", help="entries that this consumer holds")
    which.add_argument("--deliveries", type=_count, metavar="N", help="delivered at least so often")
    which.add_argument(
        *("--min-idle", "--idle"),
        type=_not_negative,
        metavar="S",
        help="without a sign of life for so long (default: the lease)",
    )


def add_stuck(parser: argparse.ArgumentParser) -> None:
    """`stuck`."""
    _add_entries(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    add_target(parser)


def add_replay(parser: argparse.ArgumentParser) -> None:
    """`replay`."""
    _add_entries(parser)
    parser.add_argument("--all", action="store_true", help="every entry that is idle for long enough")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument("--json", action="store_true", help="print what was done for machines")
    add_target(parser)


def add_dead(parser: argparse.ArgumentParser) -> None:
    """`dead`."""
    parser.add_argument("action", choices=("list", "show", "replay", "drop"), help="what to do")
    parser.add_argument("letters", nargs="*", metavar="LETTER", help="entry ids of dead letters, as `dead list` shows")
    which = parser.add_argument_group("which, in place of letters; all that is given must hold")
    which.add_argument("--id", action="append", metavar="ID", help="of this request; may be repeated")
    which.add_argument("--stage", choices=_STAGES, help="that died in this stage")
    which.add_argument("--reason", metavar="WORD", help="that died of this, e.g. deliveries")
    which.add_argument("--older", type=_not_negative, metavar="S", help="that died longer ago than this")
    which.add_argument("--all", action="store_true", help="replay: every letter that can be")
    parser.add_argument("--dry-run", action="store_true", help="replay, drop: say what would be done")
    parser.add_argument("--json", action="store_true", help="one JSON object a line; replay, drop: one in all")
    add_target(parser)


def add_drain(parser: argparse.ArgumentParser) -> None:
    """`drain`."""
    parser.add_argument("--open", action="store_true", help="take requests in again")
    parser.add_argument(
        "--timeout",
        type=_positive,
        metavar="S",
        help="end with 1 after so long; the pool stays drained (default: none)",
    )
    parser.add_argument("--json", action="store_true", help="print the report for machines")
    add_target(parser)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """`limits`."""
    parser.add_argument(
        "action",
        choices=("show", "set", "reset", "resume"),
        help="show: what is in force; set: change it for all workers at once; reset: put the configuration file's in "
        "force again; resume: end a pause whose cause was mended",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="DEPLOYMENT | NAME=VALUE",
        help="set: one deployment and rpm, tpm, itpm, otpm, rpd, tpd or max_in_flight = a number or none, settlement = "
        "auto, none or refund; reset, resume: one deployment (default: all)",
    )
    parser.add_argument("--dry-run", action="store_true", help="set, reset: say what would be changed")
    parser.add_argument("--json", action="store_true", help="show, set, reset: for machines")
    add_target(parser)


def add_check(parser: argparse.ArgumentParser) -> None:
    """`check`."""
    parser.add_argument("--show", action="store_true", help="print the resolved configuration, secrets masked")
    parser.add_argument("--offline", action="store_true", help="leave the provider and the edge alone")
    parser.add_argument("--workers", type=_count, metavar="N", help="judge slots for so many worker processes")
    add_target(parser)
