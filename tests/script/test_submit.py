"""Taking requests in, watching for their results, and opening second lives, on a real server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.script import views
from tests.script.bench import Bench

pytestmark = pytest.mark.anyio


async def submit(bench: Bench, request_id: str, *, most: int = 100, inbox: str = "") -> tuple[str, int, int]:
    """Submit a request as the client does; returns answer, how many wait, and when there is room."""
    fields = ("request", msgspec.json.encode(bench.request(request_id)))
    keys = {"status": bench.keys.status(request_id), "lane": bench.keys.key("ingest")}
    answer, waiting, room_ms = await bench.run("request_submit", (most, inbox, *fields), bind=keys)
    return answer.decode(), waiting, room_ms


async def watch(bench: Bench, request_id: str, inbox: str) -> Any:
    return await bench.run("request_watch", (inbox, 60), bind={"status": bench.keys.status(request_id)})


async def test_a_request_is_taken_in_once(bench: Bench) -> None:
    """A submit that is repeated after a lost reply, or by a second caller, adds nothing."""
    assert await submit(bench, "a", inbox="one") == ("added", 0, 0)
    before = await views.snapshot(bench)

    assert await submit(bench, "a", inbox="one") == ("known", 1, 0)

    assert await views.snapshot(bench) == before
    assert await views.lengths(bench) == {"ingest": 1}
    assert await bench.redis("TTL", bench.keys.status("a")) == -1


async def test_an_answered_id_stays_known(bench: Bench) -> None:
    """As long as its result can be asked for, an id is not carried out again."""
    await submit(bench, "a")
    await bench.finish(*await bench.take("ingest"))

    assert (await submit(bench, "a"))[0] == "known"
    assert await views.lengths(bench) == {}


async def test_submit_is_refused_when_too_many_wait(bench: Bench) -> None:
    """Back-pressure counts what waits anywhere before its call: intake, gate and backlog; known ids still answer."""
    await submit(bench, "a")
    await bench.send(bench.request("fill", prompt_tokens=960), bench.request("waits"))
    batch = msgspec.json.encode(bench.request("g", priority="batch"))
    await bench.redis("XADD", bench.keys.key("gate:batch"), "*", "request", batch)

    answer, waiting, room_ms = await submit(bench, "b", most=3)

    assert (answer, waiting) == ("full", 3)
    assert room_ms == pytest.approx(620, abs=2)  # 100 tokens at 10,000 in 62 s
    assert (await submit(bench, "a", most=3))[0] == "known"
    assert await views.exists(bench, "status:b") == []


async def test_everybody_who_watches_gets_the_result(bench: Bench) -> None:
    """Whoever asked, before or after the submit, gets the result in the inbox once; later askers get it at once."""
    assert await watch(bench, "a", "early") == b""
    await submit(bench, "a", inbox="own")
    assert await watch(bench, "a", "late") == await watch(bench, "a", "late") == b""

    await bench.finish(*await bench.take("ingest"), content="Yes.")

    for inbox in ("early", "own", "late"):
        assert await bench.redis("XLEN", bench.keys.inbox(inbox)) == 1
    assert msgspec.json.decode(await watch(bench, "a", "after"))["content"] == "Yes."
    assert await views.exists(bench, "inbox:after") == []


async def test_watching_what_never_comes_leaves_nothing(bench: Bench) -> None:
    """Asking for an id that nobody submits is forgotten after a while."""
    await watch(bench, "never", "inbox")

    assert 0 < await bench.redis("TTL", bench.keys.status("never")) <= 60


async def test_the_oldest_of_many_watchers_gives_way(bench: Bench) -> None:
    """A program that watches one id from ever new inboxes doesn't make a status grow without end."""
    for index in range(20):
        await watch(bench, "a", f"inbox{index}")

    listed = (await views.status(bench, "a"))["inbox"].split()
    assert listed == [f"inbox{index}" for index in range(4, 20)]


async def test_status_tells_position_and_time(bench: Bench) -> None:
    """A waiting request can be asked for its place and an estimate of its wait."""
    await bench.fill()
    for name in ("first", "second"):
        await bench.advance(0.01)
        await bench.send(bench.request(name, tenant=name))

    flat, position, eta_ms = await bench.run(
        "request_status", ("second",), bind={"status": bench.keys.status("second")}
    )

    said = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
    assert said[b"state"] == b"deferred"
    assert position == 2
    assert eta_ms == pytest.approx(2 * 620, abs=5)


async def test_a_dead_letter_lives_again_once(bench: Bench) -> None:
    """A replayed letter opens one second life with a result of its own, however often the replay is repeated."""
    (held,) = await bench.arrive(bench.request("a"))
    await bench.bury(held)
    ((letter, _),) = await bench.redis("XRANGE", bench.keys.key("dead"), "-", "+")
    again = msgspec.structs.replace(held.request, replay=1)
    keys = {"status": bench.keys.status("a"), "target": bench.keys.key("ingest")}
    args = (letter, 1, 0, "{}", "request", msgspec.json.encode(again))

    assert await bench.run("dead_replay", args, bind=keys) != b""
    assert await bench.run("dead_replay", args, bind=keys) == b""

    entries = await bench.take("ingest")
    assert await bench.forward(entries, "gate:interactive", claims=True) == ["moved"]
    await views.run_out(bench)
    assert await views.answers(bench) == {("a", "0"): 1, ("a", "1"): 1}


async def test_a_leaving_worker_takes_its_slots_along(bench: Bench) -> None:
    """The gate stops counting on a worker as soon as it says that it leaves."""
    assert await bench.beat() == bench.now_ms
    await bench.beat(premium=-1)

    assert await bench.send(bench.request("a")) == ["deferred"]


async def test_what_an_operator_set_live_stays_until_the_file_changes(bench: Bench) -> None:
    """Workers that start don't undo a live change of limits; a changed configuration does."""
    await bench.redis("HSET", bench.keys.key("limits"), "primary", '{"limits": []}')

    await bench.seed(bench.deployments)

    assert await bench.redis("HGET", bench.keys.key("limits"), "primary") == b'{"limits": []}'
    await bench.seed([msgspec.structs.replace(bench.deployments[0], rpm=50)])
    assert b'"rpm"' in await bench.redis("HGET", bench.keys.key("limits"), "primary")
