"""The command line. `main` finds the command first and loads only what that command needs.

`--help` therefore pays for argparse alone: neither this file nor `commands`, `options` and `parser` may import
redis, asyncio, rich or anything that does.

    commands parser options   what there is to type
    target output             which Redis and pool are meant · how a command speaks
    the others                the work of one command, or of a group of them
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pipeline.cli.commands import COMMANDS, load, overview, unknown
from pipeline.cli.parser import UsageError
from tokenweir.errors import ConfigError, StoreUnavailable, TokenweirError

OK, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
# What a shell reports for a program that was ended by SIGINT or SIGPIPE.
_INTERRUPTED, _NOBODY_READS = 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; whatever goes wrong is said in one line on stderr.

    0 ok, 1 a promise broken or a request failed, 2 usage or configuration, 3 Redis unreachable or refusing.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(words)
        # Whoever reads our output may have gone: learn it here, and not in the interpreter's last breath.
        sys.stdout.flush()
        return code
    except (UsageError, ConfigError) as error:
        return _fail(str(error), USAGE)
    except StoreUnavailable as error:
        reason = str(error).rstrip(".")
        if error.forbidden:
            return _fail(f"Redis refuses this user: {reason}; `tokenweir check` says what is missing", UNREACHABLE)
        return _fail(f"{reason}; is Redis up? --redis or REDIS_URL names another", UNREACHABLE)
    except TokenweirError as error:
        return _fail(str(error), FAILED)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NOBODY_READS
    except OSError as error:
        return _fail(f"{error.filename or 'output'}: {error.strerror}", FAILED)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(overview())
        return OK if words else USAGE
    if words[0] == "--version":
        import tokenweir

        sys.stdout.write(f"tokenweir {tokenweir.__version__}\n")
        return OK
    if words[0] not in COMMANDS:
        raise UsageError(unknown(words[0]))
    parse, run = load(COMMANDS[words[0]])
    try:
        args = parse(words[1:])
    except SystemExit as ended:  # how argparse ends after --help
        return int(ended.code or 0)
    return run()(args)


def _fail(text: str, code: int) -> int:
    sys.stderr.write(f"tokenweir: {' '.join(text.split())}\n")
    return code
