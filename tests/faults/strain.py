"""What a fault makes workers do: nobody may run hot while nothing can be done (case invariant I5)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from redis.exceptions import RedisError

from tests.integration.processes import wait_until
from tests.integration.rig import Rig

# A second and worker.
HOT = 20.0
# What workers send; everything else in the server's statistics is done by scripts, or by the test.
_SENT = ("eval", "evalsha", "xreadgroup", "xgroup", "client", "hello", "script", "xadd")


class Strain(NamedTuple):
    """So far: lines of warnings and errors, connections tried, commands sent, and of those the refused ones."""

    lines: int
    connections: int
    commands: int
    refused: int

    @classmethod
    def of(cls, rig: Rig) -> Strain:
        """As it stands; a Redis that is away has no figures."""
        lines = sum(_grave(line) for run in rig.runs for line in run.text.splitlines())
        try:
            stats = rig.redis.info("commandstats")
            connections = rig.redis.info("stats")["total_connections_received"]
        except RedisError:
            stats, connections = {}, 0
        if rig.between:
            connections = rig.between.redis.opened
        rows = [row for name, row in stats.items() if name.removeprefix("cmdstat_").partition("|")[0] in _SENT]
        refused = sum(row["rejected_calls"] + row["failed_calls"] for row in rows)
        return cls(lines, connections, sum(row["calls"] for row in rows), refused)

    def since(self, before: Strain, *, seconds: float, workers: int) -> dict[str, float]:
        """A second and worker."""
        pairs = zip(self._fields, self, before, strict=True)
        return {name: round((now - then) / seconds / workers, 2) for name, now, then in pairs}


def _grave(line: str) -> bool:
    if not line.startswith("{"):
        return bool(line)  # a traceback
    return json.loads(line)["level"] not in ("debug", "info")


@contextmanager
def no_hot_loop(
    rig: Rig, *, of: tuple[str, ...] = ("lines", "connections", "refused"), most: float = HOT
) -> Iterator[dict[str, float]]:
    """Fails if within the block workers did more than `most` of anything named in `of`, a second and worker.

    Yields the figures, which are there at the end of the block.
    """
    before, began, workers = Strain.of(rig), time.monotonic(), sum(run.count for run in rig.runs)
    figures: dict[str, float] = {}
    yield figures
    figures |= Strain.of(rig).since(before, seconds=time.monotonic() - began, workers=workers)
    hot = {name: rate for name, rate in figures.items() if name in of and rate > most}
    assert hot == {}, f"a second and worker: {hot}"


def let_pass(seconds: float) -> None:
    """Have a fault, or a rest, last so long."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 1)
