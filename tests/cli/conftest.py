"""The real command line in processes of its own, and a worker's hands to finish entries without an engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from pipeline.config import Pool
from pipeline.message import Request, encode
from pipeline.outcome import Dead, Done
from pipeline.store import Entry, Store
from tokenweir.keys import GROUPS, Keys
from tokenweir.wire import Result

_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_S = 30.0
_POOL = """
[pools.{pool}]
lease_s = 30
[[pools.{pool}.deployments]]
base_url = "http://127.0.0.1:9/v1"
api_key = "env:TOKENWEIR_TEST_KEY"
rpm = 500
tpm = 30_000
"""


class Cli:
    """`tokenweir` in `folder`, where a configuration with the test's own pool lies."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.redis_url = env["REDIS_URL"]
        self._env = {**env, "PYTHONPATH": str(_ROOT), "PYTHONWARNINGS": "error"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command that is spoken to while it runs."""
        pipe = subprocess.PIPE
        command = [sys.executable, "-P", "-m", "pipeline.cli", *words]
        return subprocess.Popen(
            command, cwd=self.folder, env=self._env, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def __call__(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        with self.start(*words) as process:
            out, err = process.communicate(given, timeout=_PATIENCE_S)
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(words, process.returncode, out, err)


@pytest.fixture
def offline(tmp_path: Path) -> Cli:
    """The command line where nothing listens at the Redis URL."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TOKENWEIR", "REDIS", "COV"))}
    return Cli(tmp_path, {**env, "REDIS_URL": "redis://127.0.0.1:9/0", "XDG_STATE_HOME": str(tmp_path)})


@pytest.fixture
def cli(offline: Cli, redis_url: str, keys: Keys, tmp_path: Path) -> Cli:
    """The command line on the test's own pool."""
    (tmp_path / "tokenweir.toml").write_text(_POOL.format(pool=keys.pool))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TOKENWEIR", "REDIS"))}
    return Cli(tmp_path, {**env, "REDIS_URL": redis_url})


class Hands:
    """One worker's hands: takes entries and ends them as a stage would."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def take(self, lane: str, *, count: int = 1000) -> list[Entry]:
        """Take new entries of a lane."""
        await self.store.streams.make_groups([lane])
        return await self.store.streams.read(self.store.control, [lane], count=count)

    async def put(self, lane: str, request: Request) -> None:
        """Write an inner entry, as the stage before would."""
        await self.store.control.command("XADD", self.store.keys.key(lane), "*", "request", encode(request))

    async def finish(self, lane: str, *, content: str = "answer", status: str = "ok") -> list[str]:
        """Answer everything new in an ingest lane; returns the request ids."""
        entries = await self.take(lane)
        ids = [entry.fields[b"id"].decode() for entry in entries]
        results = [_result(request_id, f"{content} {index}", status) for index, request_id in enumerate(ids)]
        rows = [(entry.id, Done(result=result)) for entry, result in zip(entries, results, strict=True)]
        await self.store.streams.finish(lane, rows)
        return ids

    async def bury(self, lane: str, request_id: str) -> None:
        """Send the one new entry of a lane to `dead`."""
        (entry,) = await self.take(lane)
        result = Result(id=request_id, status="error", code="dead_letter")
        dead = Dead(reason="deliveries", message="its workers died", request_id=request_id)
        await self.store.streams.bury(lane, [(entry, dead, result)], at_ms=1_753_360_000_000)

    async def fields(self, stream: str) -> list[dict[bytes, bytes]]:
        """The fields of all entries of a stream."""
        found = await self.store.control.command("XRANGE", self.store.keys.key(stream), "-", "+")
        return [fields for _, fields in found]

    async def pending(self, lane: str) -> int:
        """How many entries of a lane are in somebody's hands."""
        about = await self.store.control.command("XPENDING", self.store.keys.key(lane), GROUPS[lane])
        return int(about["pending"])


def _result(request_id: str, content: str, status: str) -> Result:
    if status == "ok":
        return Result(id=request_id, status="ok", route="premium", model="gpt-4o", content=content)
    return Result(id=request_id, status="error", code="provider_rejected")


@pytest.fixture
async def hands(redis_url: str, keys: Keys) -> AsyncIterator[Hands]:
    """A worker's hands on the test's own pool."""
    store = Store(redis_url, keys, Pool())
    yield Hands(store)
    await store.aclose()
