"""The only place of the engine that talks to Redis."""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import AsyncExitStack

from pipeline.config import Pool
from pipeline.store.cancelled import Cancelled
from pipeline.store.deltas import Deltas
from pipeline.store.gate import Drained, Gate, Verdict
from pipeline.store.outage import LONGEST_WAIT_S, Outage
from pipeline.store.streams import Entry, Reclaimed, Retention, Streams
from tokenweir.connection import Connection, connect
from tokenweir.keys import Keys

__all__ = [
    "LONGEST_WAIT_S",
    "Connection",
    "Drained",
    "Entry",
    "Gate",
    "Outage",
    "Reclaimed",
    "Retention",
    "Store",
    "Streams",
    "Verdict",
]


class Store:
    """One worker process's access to one pool: a control connection pool, and a reader for each stage.

    Make it inside the running event loop, and after any fork.
    """

    def __init__(self, url: str, keys: Keys, pool: Pool) -> None:
        self.keys = keys
        self.consumer = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.control = Connection(connect(url, max_connections=4), keys)
        self.outage = Outage()
        self.deltas = Deltas(self.control)
        first = pool.deployments[0]
        self.streams = Streams(
            self.control,
            consumer=self.consumer,
            deployments=[deployment.name for deployment in pool.deployments],
            window_s=first.window_s,
            retention=Retention(
                status_ttl_s=pool.status_ttl_s,
                responses=(pool.responses_kept, pool.responses_age_s),
                dead=(pool.dead_kept, pool.dead_age_s),
            ),
        )
        self.gate = Gate(
            self.control,
            consumer=self.consumer,
            deployments=pool.deployments,
            edge_queue=pool.edge.queue if pool.edge else 0,
            max_waiting=pool.max_waiting,
            status_ttl_s=pool.status_ttl_s,
            responses_kept=pool.responses_kept,
        )
        self._url = url
        self._readers: list[Connection] = []
        self.cancelled = Cancelled(self.reader())
        self._offset_ms = 0.0  # Redis time minus ours; set by heartbeats

    def reader(self) -> Connection:
        """A connection of its own for blocking reads: they must not hold up anybody else."""
        reader = Connection(connect(self._url, max_connections=1), self.keys)
        self._readers.append(reader)
        return reader

    def now_ms(self) -> float:
        """Redis time, as well as we know it since the last heartbeat."""
        return time.time() * 1000 + self._offset_ms

    def learn_time(self, redis_ms: float) -> None:
        """Take Redis time from a reply: skewed workers then agree on ages."""
        self._offset_ms = redis_ms - time.time() * 1000

    async def aclose(self) -> None:
        """Close every connection, also when a cancellation strikes one of them."""
        async with AsyncExitStack() as stack:
            for connection in (self.control, *self._readers):
                stack.push_async_callback(connection.aclose)
