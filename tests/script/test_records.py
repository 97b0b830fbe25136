"""How grants and waiting requests are recorded: quick to find however few there are, and readable across versions."""

from __future__ import annotations

import re

import pytest

from tests.script.bench import Bench

pytestmark = pytest.mark.anyio


async def test_one_record_is_found_as_quickly_as_thousands(bench: Bench) -> None:
    """Redis keeps records as a table from the first one on: a list it would search from end to end at every look."""
    assert await bench.send(bench.request("called"), bench.request("waits", prompt_tokens=4_000, tenant="b")) == [
        "premium",
        "deferred",
    ]
    for name in ("grants", "backlog:meta"):
        assert await bench.redis("OBJECT", "ENCODING", bench.keys.key(name)) == b"hashtable", name

    assert await bench.start(await bench.take("premium")) == ["started"]
    (record,) = (await bench.redis("HGETALL", bench.keys.key("grants"))).values()
    assert len(record) > 64


async def test_records_of_the_version_before_are_understood(bench: Bench) -> None:
    """A system that is upgraded while it works starts its calls, serves its backlog, and counts as before."""
    assert await bench.send(bench.request("called"), bench.request("waits", prompt_tokens=960, tenant="b")) == [
        "premium",
        "deferred",
    ]
    for name in ("grants", "backlog:meta"):
        key = bench.keys.key(name)
        for member, record in (await bench.redis("HGETALL", key)).items():
            shorter = re.sub(rb" 0+(?=\d)", b" ", record)
            assert len(shorter) < len(record)
            await bench.redis("HSET", key, member, shorter)

    (called,) = await bench.take("premium")
    assert await bench.start([called]) == ["started"]
    assert await bench.finish(called, used=100) == [1]
    await bench.advance(60)
    drained = await bench.drain(*await bench.notices())
    assert drained.premium == 1
    (waited,) = await bench.take("premium")
    assert (waited.request.id, waited.deployment) == ("waits", "primary")
