"""`tokenweir run` with worker processes whose clocks are 90 s behind, right, and 90 s ahead."""

from __future__ import annotations

import argparse
import asyncio
import time

import structlog

from pipeline import logs
from pipeline.app import Worker
from pipeline.cli.run import add_arguments
from pipeline.cli.target import resolve
from pipeline.supervisor import supervise

SKEWS_S = (-90, 0, 90)


def _shift(by_s: int) -> None:
    """From now on this process's clock is wrong; the monotonic one is as it was."""
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + by_s
    time.time_ns = lambda: right_ns() + by_s * 10**9


def main() -> int:
    """Run workers until told to stop."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args()
    logs.setup()
    target = resolve(args)

    def work(index: int) -> int:
        _shift(SKEWS_S[index % len(SKEWS_S)])
        structlog.get_logger().info("clock_shifted", now_s=time.time())
        asyncio.run(Worker(target.config, target.pool_name, url=target.url).run())
        return 0

    return supervise(work, args.workers)


if __name__ == "__main__":
    raise SystemExit(main())
