"""The gate's decisions on a real server, on a clock of ours."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.config import Deployment
from tests.script import views
from tests.script.bench import PRIMARY, Bench
from tests.script.conftest import Open
from tokenweir.errors import StoreUnavailable

pytestmark = pytest.mark.anyio


async def test_a_request_with_room_goes_to_premium(bench: Bench) -> None:
    """With budget and a free slot a request goes straight to the provider's stream, with its grant."""
    (held,) = await bench.arrive(bench.request("a"))

    assert await bench.admit([held]) == [("premium", "primary")]

    assert await views.budget(bench) == (1, 100, 1, 100)
    (entry,) = await bench.redis("XRANGE", bench.keys.key("premium"), "-", "+")
    assert entry[1][b"deployment"] == b"primary"
    assert entry[1][b"grant"] == f"primary:1:{bench.now_us}".encode()
    assert await views.lengths(bench) == {"premium": 1}
    said = await views.status(bench, "a")
    assert (said["state"], said["stage"]) == ("waiting", "premium")


async def test_a_repeat_after_a_lost_reply_changes_nothing(bench: Bench) -> None:
    """When the reply is lost and the batch is sent again, nobody is charged or handed over twice."""
    held = await bench.arrive(*(bench.request(f"r{index}", tenant=f"t{index}") for index in range(15)))
    first = await bench.admit(held)
    before = await views.snapshot(bench)

    again = await bench.admit(held)

    assert {decision for decision, _ in first} == {"premium", "deferred"}
    assert {decision for decision, _ in again} == {"gone"}
    assert await views.snapshot(bench) == before


async def test_one_entry_named_twice_in_a_batch_is_served_once(bench: Bench) -> None:
    """A batch that names the same entry twice makes one call of it."""
    (held,) = await bench.arrive(bench.request("a"))

    decisions = [decision for decision, _ in await bench.admit([held, held])]

    assert decisions == ["premium", "gone"]
    assert await views.lengths(bench) == {"premium": 1}
    assert (await views.budget(bench)).requests == 1


async def test_all_limits_or_none_are_charged(bench: Bench) -> None:
    """When the tokens don't fit, no request is charged either; what fits beside it goes on."""
    decisions = await bench.send(
        bench.request("large", prompt_tokens=900),
        bench.request("too", prompt_tokens=300, tenant="other"),
        bench.request("small", prompt_tokens=20, tenant="third"),
    )

    assert decisions == ["premium", "deferred", "premium"]
    assert await views.budget(bench) == (2, 1000, 2, 1000)


async def test_the_deployment_with_most_room_is_taken(opened: Open) -> None:
    """Two keys at a provider are used evenly: each request goes where most is left."""
    bench = await opened(PRIMARY, Deployment(name="second", rpm=100, tpm=20_000))

    verdicts = await bench.admit(await bench.arrive(*(bench.request(f"r{i}", tenant=f"t{i}") for i in range(30))))

    taken = [deployment for _, deployment in verdicts]
    assert (taken.count("primary"), taken.count("second"), taken.count("")) == (10, 10, 10)
    assert (await views.budget(bench)).requests == (await views.budget(bench, "second")).requests == 10


async def test_a_paused_deployment_is_passed_over(opened: Open) -> None:
    """While one key is told to wait, the other one serves."""
    bench = await opened(PRIMARY, Deployment(name="second", rpm=100, tpm=5_000))
    await bench.send(bench.request("a"))
    (held,) = await bench.take("premium")
    await bench.retry(held, wait_s=30, pause_s=30)

    verdicts = await bench.admit(await bench.arrive(bench.request("b", tenant="b"), bench.request("c", tenant="c")))

    assert [deployment for _, deployment in verdicts] == ["second", "second"]


async def test_without_slots_simple_work_goes_to_the_edge_and_the_rest_waits(opened: Open) -> None:
    """When no worker is free for premium, simple requests go to the local model and others wait."""
    bench = await opened(premium=0, edge=1)

    simple: dict[str, Any] = {"simple": True, "edge": True}
    decisions = await bench.send(
        bench.request("a"), bench.request("b", **simple), bench.request("c", **simple), edge_queue=0
    )

    assert decisions == ["deferred", "edge", "deferred"]
    assert (await views.budget(bench)).requests == 0


async def test_slots_taken_by_unfinished_calls_are_not_given_again(opened: Open) -> None:
    """No more calls are on their way than workers have free hands."""
    bench = await opened(premium=3)

    decisions = await bench.send(*(bench.request(f"r{index}", tenant=f"t{index}") for index in range(5)))
    more = await bench.send(bench.request("more", tenant="more"))

    assert decisions == ["premium"] * 3 + ["deferred"] * 2
    assert more == ["deferred"]


async def test_the_edge_queue_is_short(opened: Open) -> None:
    """Behind busy edge slots a few may wait, the rest goes to the backlog instead of queuing in silence."""
    bench = await opened(premium=0, edge=2)

    requests = [bench.request(f"r{index}", simple=True, edge=True, tenant=f"t{index}") for index in range(6)]
    decisions = await bench.send(*requests, edge_queue=3)

    assert decisions == ["edge"] * 5 + ["deferred"]


async def test_simple_work_leaves_half_of_the_burst_to_the_rest(opened: Open) -> None:
    """While the edge can help, simple requests don't take the last half of what only premium can do."""
    bench = await opened(edge=1)
    simple: dict[str, Any] = {"simple": True, "edge": True, "prompt_tokens": 360}

    decisions = await bench.send(*(bench.request(name, tenant=name, **simple) for name in "abc"))

    assert decisions == ["premium", "edge", "premium"], "400 of 1,000 tokens each; c finds the edge busy"


async def test_a_dead_edge_gets_nothing(opened: Open) -> None:
    """When the edge gives no sign of life, simple requests wait for premium instead."""
    bench = await opened(premium=0, edge=4)
    await bench.redis("DEL", bench.keys.key("edge:alive"))

    assert await bench.send(bench.request("a", simple=True, edge=True), edge_queue=8) == ["deferred"]


async def test_slots_of_a_silent_worker_are_forgotten(opened: Open) -> None:
    """A worker that died offers nothing: its slots go with its sign of life."""
    bench = await opened(premium=5)
    await bench.advance(10_001)

    assert await bench.send(bench.request("a")) == ["deferred"]


async def test_a_tenant_queues_behind_its_own_work(bench: Bench) -> None:
    """A newcomer doesn't overtake its own tenant's waiting work of equal or higher class; other tenants go on."""
    assert await bench.send(bench.request("big", prompt_tokens=900), bench.request("wait", prompt_tokens=500)) == [
        "premium",
        "deferred",
    ]

    same = await bench.send(bench.request("same", prompt_tokens=1, output_tokens=1))
    lower = await bench.send(bench.request("lower", prompt_tokens=1, output_tokens=1, priority="batch"))
    other = await bench.send(bench.request("other", prompt_tokens=1, output_tokens=1, tenant="other"))

    assert (same, lower, other) == (["deferred"], ["deferred"], ["premium"])


async def test_higher_work_of_a_tenant_passes_its_lower_work(bench: Bench) -> None:
    """A tenant's interactive request doesn't wait for its own batch job."""
    batch: dict[str, Any] = {"priority": "batch", "prompt_tokens": 400}
    assert await bench.send(bench.request("b1", **batch), bench.request("b2", **batch)) == ["premium", "deferred"]

    assert await bench.send(bench.request("i")) == ["premium"]


async def test_lower_classes_leave_their_share(bench: Bench) -> None:
    """Batch stops at 30 % of the burst, standard at 10 %, interactive takes it all."""
    kinds = (("batch", 7), ("standard", 2), ("interactive", 1))

    for priority, room in kinds:
        requests = [
            bench.request(
                f"{priority}{i}", priority=priority, tenant=f"{priority}{i}", prompt_tokens=1, output_tokens=1
            )
            for i in range(10)
        ]
        decisions = await bench.send(*requests)
        assert decisions.count("premium") == room, priority


async def test_what_is_past_its_deadline_is_refused(bench: Bench) -> None:
    """A request whose time is over is answered instead of being paid for."""
    late = await bench.send(bench.request("late", deadline_ms=bench.now_ms))
    soon = await bench.send(bench.request("soon", deadline_ms=bench.now_ms + 1))

    assert (late, soon) == (["expired"], ["premium"])
    assert (await views.budget(bench)).requests == 1


async def test_what_no_deployment_ever_allows_is_refused(opened: Open) -> None:
    """A request larger than the whole limit is answered at once; the edge may still take a simple one."""
    bench = await opened(edge=1)

    huge: dict[str, Any] = {"prompt_tokens": 10_001, "output_tokens": 0}
    simple: dict[str, Any] = {"simple": True, "edge": True}
    decisions = await bench.send(
        bench.request("a", **huge), bench.request("b", **huge, **simple), bench.request("c", **huge, **simple)
    )

    assert decisions == ["too_large", "edge", "too_large"]


@pytest.mark.parametrize("tokens", [-1, -(10**9), 10**15])
async def test_counts_that_make_no_sense_give_no_credit(bench: Bench, tokens: int) -> None:
    """A request that claims negative or absurd token counts is refused and disturbs nobody."""
    decisions = await bench.send(bench.request("odd", prompt_tokens=tokens), bench.request("good", tenant="good"))

    assert decisions == ["too_large", "premium"]
    assert await views.budget(bench) == (1, 100, 1, 100)


async def test_a_full_backlog_refuses_more(bench: Bench) -> None:
    """Beyond the most that may wait, requests are refused instead of piling up."""
    requests = [bench.request(f"r{index}", prompt_tokens=900, tenant=f"t{index}") for index in range(5)]

    assert await bench.send(*requests, most=2) == ["premium", "deferred", "deferred", "queue_full", "queue_full"]
    assert len(await views.waiting(bench)) == 2


async def test_refused_requests_stay_for_the_caller_to_answer(bench: Bench) -> None:
    """A refusal is no loss: the entry stays pending until its typed error has been written."""
    (held,) = await bench.arrive(bench.request("late", deadline_ms=1))

    assert await bench.admit([held]) == await bench.admit([held]) == [("expired", "")]

    assert await views.pending(bench, "gate:interactive") == 1
    assert await bench.finish(held, status="expired") == [1]
    assert await views.lengths(bench) == {}


async def test_an_answered_request_is_not_admitted_again(bench: Bench) -> None:
    """Once an id has its result, another entry of it is dropped without a charge."""
    await bench.send(bench.request("a"))
    (call,) = await bench.take("premium")
    (again,) = await bench.arrive(bench.request("a", attempt=2))
    await bench.finish(call)

    assert await bench.admit([again]) == [("gone", "")]

    assert await views.lengths(bench) == {}
    assert (await views.budget(bench)).requests == 1


@pytest.mark.leaves_keys("somebody else's key stands in the place of a status")
async def test_a_foreign_key_in_place_of_a_status_stops_nobody(bench: Bench) -> None:
    """A list that somebody put at `status:<id>` costs that request its status, and no neighbour anything."""
    await bench.redis("RPUSH", bench.keys.status("odd"), "x")

    decisions = await bench.send(*(bench.request(name, tenant=name) for name in ("a", "odd", "b")))
    held = await bench.take("premium")

    assert decisions == ["premium"] * 3
    assert await bench.start(held) == ["started"] * 3
    assert await bench.finish(*held) == [1, 1, 1]


async def test_before_limits_are_in_place_nothing_is_decided(bench: Bench) -> None:
    """After FLUSHALL, until a worker has put the limits back, requests stay where they are; none is refused."""
    held = await bench.arrive(bench.request("a"))
    await bench.redis("DEL", bench.keys.key("limits"), bench.keys.key("budget:primary"))

    with pytest.raises(StoreUnavailable, match="NOLIMITS"):
        await bench.admit(held)

    assert await views.pending(bench, "gate:interactive") == 1
    await bench.seed([PRIMARY])
    assert await bench.admit(held) == [("deferred", "")]
    await bench.advance(10)
    assert (await bench.drain()).premium == 1
