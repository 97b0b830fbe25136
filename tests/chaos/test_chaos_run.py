"""The chaos run in short (`make chaos` is the long one), and that its judge sees what it is there to see."""

from __future__ import annotations

import json
import random
import urllib.request
from typing import Any

import pytest

from tests.chaos.ground import open_ground
from tests.chaos.load import draft
from tests.chaos.phases import PHASES, timeline
from tests.chaos.run import play
from tests.chaos.verdict import judge
from tests.integration.rig import API_KEY
from tests.support import server_binary

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_promises_outlive_kills_cuts_a_restart_a_freeze_and_forgotten_scripts(kind: str) -> None:
    """500 requests of all kinds: one answer each, no call without a grant, no 429, no repeat without its reason."""
    if not server_binary(kind):
        pytest.skip(f"no {kind} server on this machine")

    verdict = play(kind, requests=500, kills=4, cuts=40, seed=11, progress=lambda _count: None)

    assert verdict.broken == {}, verdict.stories
    assert (verdict.requests, verdict.kills) == (500, 4)
    assert verdict.cut_replies >= 30
    assert verdict.blows.keys() == {"kill", "cut", "restart", "freeze", "script flush"}
    assert 0.2 < verdict.deferred_ratio < 1
    assert verdict.edge_ratio > 0
    # Four workers died, each with 16 paid calls and 4 edge calls in hand at most.
    assert verdict.repeated_ratio * 500 <= 4 * 20 + 40


def test_the_judge_misses_nothing() -> None:
    """A request without a result, a second result, a call that nobody granted, a failure: each is counted."""
    with open_ground("valkey", provider={}, call={}) as ground:
        ground.run(groups=1, workers=1)
        draw = random.Random(1)
        ground.add([draft(index, draw) for index in range(8)])
        ground.rig.wait_for_count(8)
        ground.read()
        ground.wait_quiet(5)
        assert judge(ground, seconds=1).broken == {}

        responses = ground.rig.keys.key("responses")
        found: Any = ground.rig.redis.xrange(responses, count=2)
        (_, fields), (_, other) = found
        ground.rig.redis.xadd(responses, fields)
        ground.rig.redis.xadd(responses, {**other, b"id": b"stranger", b"status": b"error"})
        ground.sent.append("never-came")
        _call(ground.rig.sandbox.premium, "[complex-1] once more?")
        ground.read()

        assert judge(ground, seconds=1).broken == {
            "lost": 1,
            "duplicates": 1,
            "ungranted_calls": 1,
            "failed": 1,
            "unexplained": 1,
        }


def test_a_seed_of_the_soak_does_the_same_again() -> None:
    """What `make soak` did to the pool is done again with its seed, at the same times and with the same choices."""
    assert timeline(7, 600) == timeline(7, 600)
    assert timeline(7, 600) != timeline(8, 600)
    assert {moment.phase for moment in timeline(7, 600)} == set(PHASES)


def _call(base_url: str, prompt: str) -> None:
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": prompt}], "max_tokens": 4}
    headers = {"content-type": "application/json", "authorization": f"Bearer {API_KEY}"}
    request = urllib.request.Request(f"{base_url}/chat/completions", json.dumps(body).encode(), headers)
    urllib.request.urlopen(request, timeout=10).close()
