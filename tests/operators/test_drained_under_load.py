"""A pool under load is drained: everything that was accepted is finished, whatever it waits for."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig
from tokenweir import Client, PoolClosed


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """One worker with a small budget, so that work waits in the backlog."""
    with open_rig(rpm=60) as opened:
        opened.run()
        opened.ask("the first one warms up")
        yield opened


def _drain(rig: Rig) -> subprocess.Popen[str]:
    env = {**os.environ, "REDIS_URL": rig.store.url}
    words = [sys.executable, "-m", "pipeline.cli", "drain", "--json", "--timeout", "60", "--config", str(rig.config)]
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def _submit(rig: Rig, text: str) -> str:
    async with Client(rig.store.url, pool=rig.keys.pool) as client:
        return await client.submit(text)


def test_a_drain_under_load_finishes_all_and_takes_nothing(rig: Rig) -> None:
    """Ingest, gate, calls and backlog are full: submits are refused at once, all accepted requests get their result."""
    ids = rig.add_many(70, tenant="crowd")
    wait_until(lambda: rig.redis.hlen(rig.keys.key("backlog:meta")) > 10, 10)

    process = _drain(rig)
    wait_until(lambda: rig.redis.exists(rig.keys.key("closed")), 20)
    with pytest.raises(PoolClosed, match="drained"):
        asyncio.run(_submit(rig, "too late"))
    ids.append(rig.add("[raw] nobody refuses this"))
    out, err = process.communicate(timeout=60)

    assert process.returncode == 0, (out, err)
    report = json.loads(out)
    assert (report["left"], report["came_in"], report["dead"]) == (0, 1, 0)
    assert {result.status for result in rig.wait_for(ids, timeout_s=1)} == {"ok"}
    assert rig.lengths() == {}

    rig.redis.delete(rig.keys.key("closed"))
    again = asyncio.run(_submit(rig, "open again"))
    assert rig.wait_for([again])[0].status == "ok"
    rig.assert_clean()
