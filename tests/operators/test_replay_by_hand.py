"""The redis-cli lines of docs/operating.md, run as they stand there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from pipeline.config import Pool
from pipeline.message import Request
from pipeline.store import Store
from tests.cli.conftest import Hands
from tests.support import Server, running_server
from tokenweir.keys import GROUPS, Keys

pytestmark = pytest.mark.anyio
_DOC = Path(__file__).resolve().parents[2] / "docs" / "operating.md"
_MARK = "<!-- a test runs these lines as they stand -->"
_LEASE_MS = 60_000


def _documented() -> str:
    """The lines of the block that is named to be run."""
    rest = _DOC.read_text().partition(_MARK)[2]
    lines = rest.split("\n\nStreams and")[0].splitlines()
    assert all(line.startswith("    ") or not line for line in lines)
    return "\n".join(line.removeprefix("    ") for line in lines)


@pytest.fixture(scope="module")
def server() -> object:
    if not shutil.which("redis-cli"):
        pytest.skip("no redis-cli on this machine")
    with running_server("valkey") as running:
        yield running


@pytest.fixture
async def hands(server: Server) -> AsyncIterator[Hands]:
    """A worker's hands on the pool that the lines name."""
    store = Store(server.url, Keys("main"), Pool())
    yield Hands(store)
    await store.control.command("FLUSHALL")
    await store.aclose()


async def _strand(hands: Hands, lane: str, count: int) -> list[str]:
    """Entries in the hands of somebody who has been without a sign of life for longer than the lines ask for."""
    for index in range(count):
        await hands.put(lane, Request(id=f"{lane}-{index}", body=msgspec.Raw(b"{}"), attempt=2))
    entries = [entry.id for entry in await hands.take(lane)]
    key, group = hands.store.keys.key(lane), GROUPS[lane]
    words: list[str | int] = ["XCLAIM", key, group, "dead:1:abc", 0, *entries, "IDLE", 31_000, "RETRYCOUNT", 1]
    await hands.store.control.command(*words)
    return entries


async def test_the_documented_lines_put_entries_back_to_work(server: Server, hands: Hands, tmp_path: Path) -> None:
    """After them the next look of a worker takes the entries, whatever its lease; what is well in hand stays there."""
    premium, gate = await _strand(hands, "premium", 2), await _strand(hands, "gate:batch", 30)
    await hands.put("gate:batch", Request(id="healthy", body=msgspec.Raw(b"{}")))
    (healthy,) = await hands.take("gate:batch")
    for lane in ("premium", "gate:batch"):
        nothing = await hands.store.streams.reclaim(lane, lease_ms=_LEASE_MS, cursor="0-0", count=100)
        assert nothing.entries == []
    shim = tmp_path / "redis-cli"
    shim.write_text(f'#!/bin/sh\nexec {shutil.which("redis-cli")} -p {server.port} "$@"\n')
    shim.chmod(0o755)

    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"PATH={tmp_path}:$PATH\n{_documented()}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    assert "dead:1:abc" in ended.stdout
    first = await hands.store.streams.reclaim("premium", lease_ms=_LEASE_MS, cursor="0-0", count=100)
    many = await hands.store.streams.reclaim("gate:batch", lease_ms=_LEASE_MS, cursor="0-0", count=100)
    # Its deliveries were kept: this is the second. Those of the others were forgiven.
    assert [(entry.id, entry.deliveries) for entry in first.entries] == [(premium[0], 2)]
    assert [(entry.id, entry.deliveries) for entry in many.entries] == [(each, 1) for each in gate]
    assert healthy.id not in [entry.id for entry in many.entries]


def test_the_lines_name_streams_with_their_groups() -> None:
    """Every stream that the page names for this is one, with the group that it says."""
    page = _DOC.read_text().partition("Streams and their groups:")[2]

    assert all(f"`{lane}`" in page for lane in GROUPS)
    for lane, group in GROUPS.items():
        if lane in _documented():
            assert f"tokenweir:{{main}}:{lane}' {group} " in _documented()
