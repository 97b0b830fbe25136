"""A whole deployment on one machine: a Redis of its own, a sandbox for the providers, real worker processes.

Tests speak to it as users do: they add entries to a stream, read `responses`, send signals, and ask the
provider's own ledger what reached it.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import msgspec
from redis import Redis

from pipeline.sandbox.control import Book, CallPage
from pipeline.sandbox.process import start_sandbox
from pipeline.sandbox.ready import Ready
from pipeline.sandbox.settings import SandboxSettings
from tests.faults.networks import Networks, open_networks
from tests.integration.processes import Store, Workers, wait_until
from tokenweir.keys import GROUPS, PERMANENT, Keys, valid_id
from tokenweir.wire import Result, result_from_fields

API_KEY = "sk-rig-0123456789abcdef"
WINDOW_S, LEASE_S = 6.0, 2.0


class Rig:
    """All of it. Made by `open_rig`."""

    def __init__(
        self,
        folder: Path,
        store: Any,
        sandbox: Ready,
        pool: str,
        settings: Mapping[str, Any],
        networks: Networks | None = None,
    ) -> None:
        self.folder, self.store, self.sandbox, self.settings = folder, store, sandbox, settings
        self.between = networks
        self.keys = Keys(pool)
        self.config = folder / f"{pool}{time.monotonic_ns()}.toml"
        url, reached = (networks.redis.url, networks.reached(sandbox)) if networks else (store.url, sandbox)
        self.config.write_text(_toml(url, reached, pool, settings))
        self.redis: Redis = store.client
        self.results: dict[str, list[Result]] = {}
        self.runs: list[Workers] = []
        self._cursor: bytes | str = "0-0"

    # Workers

    def run(self, workers: int = 1, *options: str, program: Sequence[str] = ("-m", "pipeline.cli", "run")) -> Workers:
        """Start `tokenweir run` and wait until its workers are up."""
        words = [sys.executable, *program, "--config", str(self.config)]
        if workers > 1:
            words += ["--workers", str(workers)]
        log = self.folder / f"run{time.monotonic_ns()}.log"
        self.runs.append(Workers([*words, *options], log, workers))
        return self.runs[-1].wait_ready()

    def configure(self, pool: str, **settings: Any) -> Rig:
        """The same servers and runs with other settings of the pool, or with another pool."""
        other = Rig(self.folder, self.store, self.sandbox, pool, {**self.settings, **settings}, self.between)
        other.runs = self.runs
        return other

    @property
    def networks(self) -> Networks:
        """The networks between, of a rig that was opened with them."""
        assert self.between, "open_rig(networks=True)"
        return self.between

    def end_runs(self) -> None:
        """End every run that still lives."""
        for run in self.runs:
            run.end()

    # Requests and results

    def add(self, prompt: str, *, lane: str = "ingest", **fields: Any) -> str:
        """XADD a request as any producer may; returns its id. `class_` stands for `class`."""
        return self.add_raw({"prompt": prompt, **_named(fields)}, lane)

    def add_raw(self, fields: Mapping[Any, Any], lane: str = "ingest") -> str:
        """XADD any fields; returns the id of the request: its own where it can be one, else the entry's."""
        entry = cast("bytes", self.redis.xadd(self.keys.key(lane), dict(fields))).decode()
        own = str(fields.get("id", ""))
        return own if valid_id(own) else entry

    def add_many(self, count: int, **fields: Any) -> list[str]:
        """Requests with ids of their own, every third of them simple."""
        name = f"q{len(self.runs)}-{time.monotonic_ns() % 10**9}"
        made = [f"{name}-{i}" for i in range(count)]
        pipe = self.redis.pipeline(transaction=False)
        for i, id_ in enumerate(made):
            task = "intent" if i % 3 == 0 else "analysis"
            more: dict[Any, Any] = {"id": id_, "prompt": f"[{id_}] and now?", "task": task, **_named(fields)}
            pipe.xadd(self.keys.key("ingest"), more)
        pipe.execute()
        return made

    def read(self, block_ms: int = 100) -> None:
        """Take in new entries of `responses`; waits for the first."""
        reply: Any = self.redis.xread({self.keys.key("responses"): self._cursor}, count=1000, block=block_ms)
        for entry, fields in reply[0][1] if reply else []:
            self._cursor = entry
            result = result_from_fields(fields)
            self.results.setdefault(result.id, []).append(result)

    def wait_for(self, ids: Iterable[str], timeout_s: float = 20.0) -> list[Result]:
        """The terminal results of `ids`, in their order, once all are there."""
        wanted, deadline_s = list(ids), time.monotonic() + timeout_s
        while missing := [id_ for id_ in wanted if id_ not in self.results]:
            assert time.monotonic() < deadline_s, f"{len(missing)} of {len(wanted)} lost: {missing[:3]} {self.state()}"
            self.read()
        return [self.results[id_][0] for id_ in wanted]

    def forget(self) -> None:
        """`responses` was emptied: read it from its start, and expect nothing of before."""
        self.results.clear()
        self._cursor = "0-0"

    def wait_for_count(self, count: int, timeout_s: float = 20.0) -> None:
        """Return once that many requests have their results."""
        deadline_s = time.monotonic() + timeout_s
        while len(self.results) < count:
            assert time.monotonic() < deadline_s, f"{len(self.results)} of {count} results: {self.state()}"
            self.read()

    def ask(self, prompt: str, timeout_s: float = 20.0, **fields: Any) -> Result:
        """The result of one request."""
        return self.wait_for([self.add(prompt, **fields)], timeout_s)[0]

    def command(self, *words: Any) -> Any:
        """The reply to any command; `key` names are full ones."""
        return self.redis.execute_command(*words)  # type: ignore[no-untyped-call]

    def owners(self, stage: str) -> list[int]:
        """Pids of the workers that hold entries of a stream, the oldest entry's first."""
        found: Any = self.redis.xpending_range(self.keys.key(stage), GROUPS[stage], "-", "+", 100)
        return [int(about["consumer"].split(b":")[1]) for about in found]

    # What may be left

    def state(self) -> dict[str, Any]:
        """What stands where, for people who read a failure."""
        kinds = {"stream": "xlen", "hash": "hlen", "zset": "zcard"}
        found = {}
        for key in self.redis.scan_iter(f"{self.keys.root}*", count=1000):
            kind = cast("bytes", self.redis.type(key)).decode()
            name = key.decode().removeprefix(self.keys.root)
            if kind in kinds and not name.startswith("status:"):
                found[name] = getattr(self.redis, kinds[kind])(key)
        return found

    def lengths(self) -> dict[str, int]:
        """Work streams that aren't empty, and what waits in the backlog."""
        found = {lane: self.redis.xlen(self.keys.key(lane)) for lane in GROUPS}
        found["backlog"] = self.redis.hlen(self.keys.key("backlog:meta"))
        return {name: length for name, length in found.items() if length}

    def assert_clean(self, timeout_s: float = 10.0) -> None:
        """One result an id, nothing stuck, and no key that would live for ever without being meant to."""
        wait_until(lambda: not self.lengths(), timeout_s, why=f"stuck: {self.lengths()}")
        self.read(1)
        lives = Counter((result.id, result.replay) for many in self.results.values() for result in many)
        assert [life for life, count in lives.items() if count > 1] == []
        names = [key.decode().removeprefix(self.keys.root) for key in self.redis.scan_iter(f"{self.keys.root}*")]
        stray = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in PERMANENT)]
        assert [name for name in stray if self.redis.ttl(self.keys.key(name)) == -1] == []

    def budget(self, deployment: str = "primary") -> dict[str, Any]:
        """What the gate keeps of a budget, see lua/part_budget.lua; of limits as `rpm.cum`. Empty before its first."""
        raw = cast("bytes | None", self.redis.get(self.keys.key(f"budget:{deployment}")))
        kept: dict[str, Any] = msgspec.msgpack.decode(raw) if raw else {}
        limits = kept.pop("limits", {})
        return kept | {f"{limit}.{name}": value for limit, about in limits.items() for name, value in about.items()}

    def change_budget(self, deployment: str = "primary", **values: Any) -> None:
        """Put other values into what is kept, in one step, since workers are at it too."""
        script = (
            "local kept = cmsgpack.unpack(redis.call('GET', KEYS[1])) for name, value in pairs(cjson.decode(ARGV[1])) "
        )
        script += "do kept[name] = value end redis.call('SET', KEYS[1], cmsgpack.pack(kept))"
        self.command("EVAL", script, 1, self.keys.key(f"budget:{deployment}"), json.dumps(values))

    # The provider's own books

    def book(self) -> Book:
        """Its ledger."""
        return msgspec.json.decode(_get(f"{self.sandbox.control}/ledger"), type=Book)

    def calls(self, marker: str = "", side: str = "premium") -> int:
        """How many calls whose prompt holds `marker` reached it."""
        return sum(marker in prompt for prompt in self.prompts(side))

    def prompts(self, side: str = "premium") -> list[str]:
        """The prompts that reached it, in the order of their arrival."""
        page = msgspec.json.decode(_get(f"{self.sandbox.control}/calls"), type=CallPage)
        return [call.prompt for call in page.calls if call.side == side]

    def order(self, **fault: Any) -> None:
        """Have it fail: `kind`, `match`, `times`, `side`."""
        data = json.dumps([fault]).encode()
        urllib.request.urlopen(f"{self.sandbox.control}/faults", data=data, timeout=10).close()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over all live workers of all runs."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        total = 0.0
        for worker in (worker for run in self.runs for worker in run.started if worker["pid"] in run.live):
            for line in _get(f"http://127.0.0.1:{worker['metrics_port']}/metrics").decode().splitlines():
                if line.startswith((name + "{", name + " ")) and all(label in line for label in wanted):
                    total += float(line.rpartition(" ")[2])
        return total


def _named(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as they are called on the stream: `class` is a word of Python's own."""
    return {name.rstrip("_"): value for name, value in fields.items()}


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return cast("bytes", reply.read())


@contextmanager
def open_rig(
    *,
    pool: str = "main",
    rpm: int = 5000,
    tpm: int = 5_000_000,
    kind: str = "valkey",
    sandbox: Mapping[str, Any] | None = None,
    store: Callable[[Path, str], Store] = Store,
    place: Any = None,
    networks: bool = False,
    **settings: Any,
) -> Iterator[Rig]:
    """A deployment without workers yet; everything in it ends with the block.

    Args:
        rpm, tpm: of the one deployment, per window of 6 s; the provider enforces them.
        sandbox: more settings of the providers. store: makes the Redis, in a folder and of a kind.
        place: another Redis, with `url` and `client` (tests/cluster/kit.py), that runs and goes on after the block.
        networks: workers reach Redis and the provider through networks that fail on command.
        settings: of the pool; `edge` and `call` are tables of more settings for the edge and the deployment.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tw")))
        made = place
        if place is None:
            made = store(folder, kind)
            stack.callback(made.client.close)
            stack.callback(made.stop)
            made.start()
        limits = {"rpm": rpm, "tpm": tpm, "window_s": WINDOW_S}
        chosen = {"time_scale": 10.0, "api_keys": (API_KEY,), **limits, **(sandbox or {})}
        ready = stack.enter_context(start_sandbox(SandboxSettings(**chosen)))
        between = stack.enter_context(open_networks(made.port, ready.premium)) if networks else None
        rig = Rig(folder, made, ready, pool, {**settings, "call": {**limits, **settings.get("call", {})}}, between)
        stack.callback(rig.end_runs)
        yield rig


def _toml(url: str, sandbox: Ready, pool: str, settings: Mapping[str, Any]) -> str:
    # Half a second to send: the tests share two cores with the servers that they start.
    deployment = {"base_url": sandbox.premium, "api_key": API_KEY, "send_within_s": 0.5, **settings["call"]}
    edge = {"base_url": sandbox.edge, **settings.get("edge", {})}
    plain = {name: value for name, value in settings.items() if name not in ("edge", "call")}
    lines = ["[redis]", f'url = "{url}"', f"[pools.{pool}]", *_lines({"lease_s": LEASE_S, "drain_s": 10.0, **plain})]
    lines += ["caps = { interactive = 40, standard = 40, batch = 40 }"]
    lines += [f"[[pools.{pool}.deployments]]", *_lines(deployment), f"[pools.{pool}.edge]", *_lines(edge), ""]
    return "\n".join(lines)


def _lines(values: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {json.dumps(value)}" for name, value in values.items()]


def raw_command(port: int, *words: str) -> bytes:
    """The reply to one command, sent by nothing but a socket."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as wire:
        parts = [word.encode() for word in words]
        wire.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
        return wire.recv(65536)
