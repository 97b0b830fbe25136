"""`tokenweir run`: a worker, or several under one supervisor."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `run` understands."""
    parser.add_argument("--workers", type=_count, default=1, metavar="N", help="worker processes (default 1)")
    parser.add_argument("--stages", metavar="A,B", help="only these stages (default: all)")
    parser.add_argument("--pool", help="which pool of the configuration (default: the first)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration (default: tokenweir.toml here)")
    parser.add_argument("--redis", metavar="URL", help="overrides the configuration and REDIS_URL")
    parser.add_argument("--metrics-port", type=int, metavar="PORT", help="of the first worker; the next takes the next")
    parser.add_argument("--debug", action="store_true", help="log more")


def run(args: argparse.Namespace) -> int:
    """Work until told to stop; 0 after an orderly stop."""
    # Everything heavy is loaded here, once, before the fork: workers then share it.
    import asyncio

    import msgspec
    import structlog

    from pipeline import logs, tokens
    from pipeline.app import Worker
    from pipeline.cli.target import resolve
    from pipeline.supervisor import supervise
    from stages import FLOW

    logs.setup(debug=args.debug)
    target = resolve(args)
    only = args.stages.split(",") if args.stages else FLOW
    Worker(target.config, target.pool_name, url=target.url, only=only)  # a mistake shows before anything is forked
    if target.server is not None:
        port = target.server.tcp_url.rpartition(":")[2].partition("/")[0]
        structlog.get_logger().info("embedded_redis_ready", url=target.server.tcp_url, try_it=f"redis-cli -p {port}")
    if "classify" in only:
        tokens.preload(deployment.model for deployment in target.pool.deployments)

    def work(index: int) -> int:
        metrics = target.config.metrics
        if args.metrics_port:
            metrics = msgspec.structs.replace(metrics, port=args.metrics_port + index)
        config = msgspec.structs.replace(target.config, metrics=metrics)
        worker = Worker(config, target.pool_name, url=target.url, only=only)
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(worker.run())
        except asyncio.CancelledError:
            # A second signal cancels: what is in hand stays pending for others, and nothing went wrong.
            return 0 if worker.stopping else 1
        return 0

    return supervise(work, args.workers)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop where it is installed: 5 to 20 % less CPU per request."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 64:
        raise argparse.ArgumentTypeError("between 1 and 64")
    return value
