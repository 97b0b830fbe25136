"""Two releases at work on one pool: nothing that the newer one wrote is lost, spoilt, or done by halves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from tests.chaos.newer_worker import HALF_MEANING
from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig
from tokenweir.keys import GROUPS

pytestmark = pytest.mark.slow

NEWER = ("-m", "tests.chaos.newer_worker")
LEASE_S = 1.0


@pytest.fixture
def rig() -> Iterator[Rig]:
    """No workers yet: each test starts those of its releases."""
    with open_rig(lease_s=LEASE_S, sandbox={"ttft_mean_s": 1.0, "ttft_p99_s": 2.0}) as opened:
        yield opened


def _add(rig: Rig, name: str, count: int, *, version_2: bool = True) -> list[str]:
    """A third simple work, a third complex, a third that workers of the newer release may make version 2 of."""
    tasks = ("intent", "analysis", "v2" if version_2 else "analysis")
    return [
        rig.add(
            f"[{name} {i}] and now?", id=f"{name}-{i}", task=tasks[i % 3], complexity="simple" if i % 3 == 0 else ""
        )
        for i in range(count)
    ]


def test_c67_a_rolling_change_and_back_loses_nothing(rig: Rig) -> None:
    """200 requests while three workers change to a newer release and back: one answer each, none refused or dead."""
    old = [rig.run() for _ in range(3)]
    ids, newer = _add(rig, "old", 40), []
    for turn in range(3):
        newer.append(rig.run(program=NEWER))
        ids += _add(rig, f"mixed{turn}", 40)
        rig.wait_for_count(len(rig.results) + 5)
        old[turn].signal()
        assert old[turn].wait() == 0
    rig.wait_for(ids, timeout_s=60)

    rig.run()
    ids += _add(rig, "back", 40, version_2=False)
    for run in newer:
        run.signal()
    results = rig.wait_for(ids, timeout_s=60)

    assert ({result.status for result in results}, [run.wait() for run in newer]) == ({"ok"}, [0, 0, 0])
    assert rig.book().premium.rejected == 0
    assert rig.redis.xlen(rig.keys.key("dead")) == 0
    assert rig.calls(HALF_MEANING) == rig.calls(HALF_MEANING, side="edge") == 0
    assert [run.events("stage_failed") for run in rig.runs if run.events("stage_failed")] == []
    rig.assert_clean()


def _inner(rig: Rig, lane: str, request_id: str, **fields: object) -> str:
    """A request as a stage of a newer release hands it over."""
    body = {"messages": [{"role": "user", "content": f"[{request_id}] {HALF_MEANING}"}], "max_tokens": 40}
    request = {"id": request_id, "body": body, "prompt_tokens": 30, "output_tokens": 40, **fields}
    rig.add_raw({"request": msgspec.json.encode(request)}, lane)
    return request_id


def test_c67_what_a_newer_release_added_passes_through_older_stages(rig: Rig) -> None:
    """Fields that a worker doesn't know reach a later stage as they were: by gate, failed call and backlog."""
    rig.run(1, "--stages", "gate,deferred,premium")
    rig.order(kind="status:500", match="[through]", times=1)
    _inner(rig, "gate:interactive", "through", hint={"for": "through"}, rest=[1, 2])
    found: dict[str, object] = {}

    def tried() -> bool:
        body = rig.redis.hget(rig.keys.key("backlog:bodies"), "through")
        found.update(msgspec.json.decode(cast("bytes", body)) if body else {})
        return found.get("attempt") == 2

    wait_until(tried, 10)

    assert (found["hint"], found["rest"]) == ({"for": "through"}, [1, 2])
    assert rig.wait_for(["through"])[0].status == "ok"
    rig.assert_clean()


def test_c67_a_version_of_the_future_is_left_to_those_who_know_it(rig: Rig) -> None:
    """Who doesn't know a version neither calls with it nor buries it, and counts no delivery: others get it whole."""
    lanes = ["gate:interactive", "premium", "edge"]
    meant = {"messages": [{"role": "user", "content": "[whole] what is meant"}], "max_tokens": 40}
    old = rig.run(2)
    ids = [_inner(rig, lane, lane, v=2, hint={"for": lane}, body2=meant) for lane in lanes]
    ids.append(rig.add("[from the future] hello?", v="2", complexity="complex"))
    lanes.append("ingest")
    wait_until(lambda: {event["lane"] for event in old.events("newer_version_met")} == set(lanes), 15)
    rig.ask("[old] who serves me?")
    seen: set[int] = set()
    passed = rig.metric("tokenweir_reclaimed_total") + 3 * len(lanes)

    def passed_round() -> bool:
        seen.update(_deliveries(rig, lane) for lane in lanes)
        return rig.metric("tokenweir_reclaimed_total") >= passed

    wait_until(passed_round, 15)

    assert seen <= {0, 1}
    assert (rig.calls(HALF_MEANING), {rig.redis.xlen(rig.keys.key(lane)) for lane in lanes}) == (0, {1})
    rig.run(program=NEWER)
    results = rig.wait_for(ids)
    assert {(result.status, result.attempt) for result in results} == {("ok", 1)}
    assert rig.redis.xlen(rig.keys.key("dead")) == 0
    rig.assert_clean()


def _deliveries(rig: Rig, lane: str) -> int:
    """How often the entry of the future that stands in a lane has been delivered."""
    held: Any = rig.redis.xpending_range(rig.keys.key(lane), GROUPS[lane], "-", "+", 1)
    return int(held[0]["times_delivered"]) if held else 0
