"""The deployment that is maltreated: real workers, a Redis behind a network that fails, providers that keep books."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pipeline.sandbox.calls import Call
from pipeline.sandbox.control import CallPage
from tests.chaos.journal import Journal
from tests.integration.processes import Store, Workers, wait_until
from tests.integration.rig import LEASE_S, Rig, open_rig
from tokenweir.draft import Draft
from tokenweir.wire import Result, result_from_fields


class Blow(NamedTuple):
    """Something that was done: what, when (Unix time), and to which process; 0 = to Redis or its network."""

    what: str
    began_s: float
    ended_s: float
    pid: int = 0


class Ground:
    """All of it, what was done to it, and what came out so far. Made by `open_ground`.

    Attributes:
        sent: ids of the requests that were added.
        results: how often a terminal result of an id stood on `responses`.
        blows: what was done, in its order.
    """

    def __init__(self, rig: Rig) -> None:
        self.rig, self.proxy = rig, rig.networks.redis
        self.journal = Journal(rig.folder, rig.keys)
        self.sent: list[str] = []
        self.results: Counter[str] = Counter()
        self.failures: list[Result] = []
        self.blows: list[Blow] = []
        self.calls: list[Call] = []
        self._cursor: bytes | str = "0-0"
        about: Any = rig.redis.info("server")
        name = "valkey" if "valkey_version" in about else "redis"
        self.server = f"{name} {about[f'{name}_version']}"
        self.lease_s = float(rig.settings.get("lease_s", LEASE_S))

    def run(self, groups: int, workers: int) -> None:
        """Start so many supervisors with so many workers each, all behind the bad network."""
        for _ in range(groups):
            self.rig.run(workers)

    @property
    def direct_config(self) -> Path:
        """The configuration of somebody who reaches Redis by a good network."""
        path = self.rig.folder / "operator.toml"
        path.write_text(self.rig.config.read_text().replace(self.proxy.url, self.rig.store.url))
        return path

    @property
    def runs(self) -> list[Workers]:
        """The supervisors."""
        return self.rig.runs

    def add(self, drafts: Sequence[Draft]) -> None:
        """XADD requests, as any producer does."""
        pipe = self.rig.redis.pipeline(transaction=False)
        for one in drafts:
            words = one.fields()
            pipe.xadd(self.rig.keys.key(one.lane), dict(zip(words[::2], words[1::2], strict=True)))
        pipe.execute()
        self.sent += [one.id for one in drafts]

    def read(self, block_ms: int = 20) -> None:
        """Take in new entries of `responses`; waits for the first."""
        key = self.rig.keys.key("responses")
        reply: Any = self.rig.redis.xread({key: self._cursor}, count=2000, block=block_ms)
        for entry, fields in reply[0][1] if reply else []:
            self._cursor = entry
            self.results[fields[b"id"].decode()] += 1
            if fields[b"status"] != b"ok":
                self.failures.append(result_from_fields(fields))

    def struck(self, what: str, began_s: float, pid: int = 0) -> None:
        """Note what was done, up to now."""
        self.blows.append(Blow(what, began_s, time.time(), pid))

    def read_books(self) -> None:
        """Take in the provider's calls since the last time, and what Redis wrote down."""
        since = self.calls[-1].seq + 1 if self.calls else 1
        with urllib.request.urlopen(f"{self.rig.sandbox.control}/calls?since={since}", timeout=30) as reply:
            page = msgspec.json.decode(reply.read(), type=CallPage)
        # A call in flight has no fate yet: it is read again.
        settled = next((at for at, call in enumerate(page.calls) if call.fate == "open"), len(page.calls))
        self.calls += page.calls[:settled]
        self.journal.read()

    @property
    def clock_offset_s(self) -> float:
        """Unix time less the provider's clock."""
        return time.time() - self.rig.book().now

    def set_limits(self, **limits: Any) -> None:
        """Have the provider allow something else from now on."""
        data = json.dumps(limits).encode()
        urllib.request.urlopen(f"{self.rig.sandbox.control}/settings", data=data, timeout=10).close()

    def wait_quiet(self, timeout_s: float) -> None:
        """Return when nothing is on its way any more; fails with what is stuck."""
        wait_until(lambda: not self.rig.lengths(), timeout_s, why=f"stuck: {self.rig.lengths()}")
        self.read(1)


@contextmanager
def open_ground(
    kind: str, *, provider: Mapping[str, Any], call: Mapping[str, Any], **settings: Any
) -> Iterator[Ground]:
    """A deployment on a server of this kind, without workers yet; everything in it ends with the block.

    Args:
        provider: settings of the sandbox. call: of the deployment. settings: of the pool.
    """
    # Never rewritten, so that the append-only file tells everything that happened.
    store = partial(Store, options=("--auto-aof-rewrite-percentage", "0"))
    with open_rig(kind=kind, sandbox=provider, call=call, store=store, networks=True, **settings) as rig:
        try:
            yield Ground(rig)
        finally:
            rig.end_runs()  # while Redis can still be reached


def some_worker(ground: Ground, draw: random.Random) -> int:
    """The pid of a live worker; of the runs the one that lost fewest, since its supervisor restarts at once."""
    run = min((run for run in ground.runs if run.live), key=lambda run: (len(run.started), draw.random()))
    return draw.choice(run.live)
