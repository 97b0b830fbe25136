"""The command `sandbox`: the simulated providers alone."""

from __future__ import annotations

import argparse

from pipeline.cli.parser import UsageError
from pipeline.sandbox.arguments import add_arguments, settings_from

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    """Serve as the options say, until Ctrl-C.

    Raises:
        UsageError: options that only together are impossible.
    """
    from pipeline.sandbox.server import run as serve

    try:
        settings = settings_from(args)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return serve(settings)
