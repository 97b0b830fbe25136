"""Requests on their way, and cancelling them as a client does."""

from __future__ import annotations

from typing import Any

import msgspec

from pipeline.message import Request
from tests.script import views
from tests.script.bench import Bench
from tokenweir.wire import Result, result_from_fields

METADATA = b'{ "ticket": 7, "size": 1.50, "none": [], "who": "\\u00e9" }'


async def submit(bench: Bench, request: Request, **fields: Any) -> None:
    """Queue a request as the client does."""
    lane = "ingest:batch" if request.priority == "batch" else "ingest"
    bind = {"status": bench.keys.status(request.id), "lane": bench.keys.key(lane)}
    flat = [part for pair in fields.items() for part in pair]
    await bench.run(
        "request_submit", [1000, "", "id", request.id, "request", msgspec.json.encode(request), *flat], bind=bind
    )


async def claim(bench: Bench, name: str, **fields: Any) -> Request:
    """A request that has been classified, and waits at the gate."""
    request = bench.request(name, metadata=msgspec.Raw(METADATA), **fields)
    held = await bench.put("ingest", request)
    assert await bench.forward(held, f"gate:{request.priority}", claims=True) == ["moved"]
    return request


async def written(bench: Bench, name: str) -> list[Result]:
    """What stands on `responses` for a request."""
    found = await bench.redis("XRANGE", bench.keys.key("responses"), "-", "+")
    return [result for result in (result_from_fields(fields) for _, fields in found) if result.id == name]


async def told(bench: Bench) -> list[tuple[str, str]]:
    """Of which cancellations workers are told."""
    found = await bench.redis("XRANGE", bench.keys.key("cancelled"), "-", "+")
    return [(fields[b"id"].decode(), fields[b"replay"].decode()) for _, fields in found]


async def cancelled(bench: Bench, name: str) -> Result:
    """The result of a request that this cancels: the same for whoever asks, and for whoever reads `responses`."""
    result = await bench.cancel(name)
    assert result is not None
    assert (result.status, result.code) == ("cancelled", "cancelled")
    assert msgspec.json.decode(result.body)["error"]["code"] == "cancelled"
    assert [one.json() for one in await written(bench, name)] == [result.json()]
    assert 0 < await bench.redis("TTL", bench.keys.status(name)) <= 3600
    state, said = await bench.redis("HMGET", bench.keys.status(name), "state", "result")
    assert (state, msgspec.json.decode(said, type=Result).json()) == (b"done", result.json())
    return result


async def check_cancelled(bench: Bench) -> None:
    """A cancelled request has one result, holds nothing, and isn't called for any more."""
    await claim(bench, "a")
    for _ in range(2):
        await bench.cancel("a")
    assert await bench.admit(await bench.take("gate:interactive")) == [("gone", "")]
    assert await views.answers(bench) == {("a", "0"): 1}
    await claim(bench, "b")
    await bench.admit(await bench.take("gate:interactive"))
    (call,) = await bench.take("premium")
    assert await bench.start([call]) == ["started"]
    await bench.cancel("b")
    assert await told(bench) == [("a", "0"), ("b", "0")]
    again = msgspec.structs.replace(call.request, attempt=2)
    await bench.forward([call._replace(request=again)], "gate:interactive")
    await bench.admit(await bench.take("gate:interactive"))
    assert (await views.budget_kept(bench)).get("in_flight", 0) == 0
    assert await views.lengths(bench) == {}
