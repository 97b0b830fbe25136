"""`tokenweir run` with stages of a test's own."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable

from pipeline import logs
from pipeline.app import Worker
from pipeline.cli.run import add_arguments
from pipeline.cli.target import resolve
from pipeline.stage import Stage
from pipeline.supervisor import supervise


def run(build: Callable[..., list[Stage]]) -> int:
    """Run workers with the stages that `build` makes until told to stop; returns the exit code."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args()
    logs.setup()
    target = resolve(args)

    def work(_index: int) -> int:
        asyncio.run(Worker(target.config, target.pool_name, url=target.url, build=build).run())
        return 0

    return supervise(work, args.workers)
