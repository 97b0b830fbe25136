"""What stands in a pool, and how everything in it is brought to its end."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import msgspec

from tests.script.bench import LANES, Bench, Held
from tokenweir.keys import GROUPS

BACKLOG = (
    *("interactive", "standard", "batch", "simple", "due", "deadlines", "meta", "bodies"),
    "timer",
)


SMALL: dict[str, Any] = {"prompt_tokens": 60, "output_tokens": 40}


class Budget(NamedTuple):
    """What a deployment's budget says: charges of the window, and all charges ever."""

    requests: int
    tokens: int
    cum_requests: int
    cum_tokens: int


async def budget(bench: Bench, name: str = "primary") -> Budget:
    """The budget as it stands, old slots included."""
    kept = (await budget_kept(bench, name))["limits"]
    return Budget(kept["rpm"]["used"], kept["tpm"]["used"], kept["rpm"]["cum"], kept["tpm"]["cum"])


async def budget_kept(bench: Bench, name: str = "primary") -> dict[str, Any]:
    """All that is kept of a budget; see lua/part_budget.lua."""
    kept: dict[str, Any] = msgspec.msgpack.decode(await bench.redis("GET", bench.keys.key(f"budget:{name}")))
    return kept


async def level(bench: Bench, limit: str = "tpm", name: str = "primary") -> float:
    return float((await budget_kept(bench, name))["limits"][limit]["level"])


async def lengths(bench: Bench) -> dict[str, int]:
    """How many entries stand in each work stream that has any."""
    found = {lane: await bench.redis("XLEN", bench.keys.key(lane)) for lane in LANES}
    return {lane: length for lane, length in found.items() if length}


async def pending(bench: Bench, lane: str) -> int:
    return int((await bench.redis("XPENDING", bench.keys.key(lane), GROUPS[lane]))["pending"])


async def status(bench: Bench, request_id: str) -> dict[str, str]:
    raw = await bench.redis("HGETALL", bench.keys.status(request_id))
    return {key.decode(): value.decode() for key, value in raw.items()}


async def waiting(bench: Bench) -> list[str]:
    """Ids in the backlog, eligible or not."""
    return sorted(key.decode() for key in await bench.redis("HKEYS", bench.keys.key("backlog:meta")))


async def answers(bench: Bench) -> Counter[tuple[str, str]]:
    """Terminal results by id and replay number."""
    found = await bench.redis("XRANGE", bench.keys.key("responses"), "-", "+")
    return Counter((fields[b"id"].decode(), fields[b"replay"].decode()) for _, fields in found)


async def exists(bench: Bench, *names: str) -> list[str]:
    return [name for name in names if await bench.redis("EXISTS", bench.keys.key(name))]


async def snapshot(bench: Bench) -> dict[str, str]:
    """Everything in the pool but its clock, as text: two that are equal mean that nothing has changed."""
    found: dict[str, str] = {}
    for key in sorted(await bench.redis("KEYS", f"{bench.keys.root}*")):
        kind = (await bench.redis("TYPE", key)).decode()
        read = {
            "hash": ("HGETALL", key),
            "zset": ("ZRANGE", key, 0, -1, "WITHSCORES"),
            "stream": ("XRANGE", key, "-", "+"),
            "list": ("LRANGE", key, 0, -1),
            "string": ("GET", key),
        }[kind]
        name = key.decode().removeprefix(bench.keys.root)
        if name != "clock":
            value = await bench.redis(*read)
            found[name] = repr(sorted(value.items()) if isinstance(value, dict) else value)
    return found


async def taken_over(bench: Bench, lane: str, *, consumer: str = "end") -> list[Held]:
    """All entries of a lane, whoever holds them, as `consumer`'s."""
    args = (GROUPS[lane], consumer, 0, "0-0", 1000)
    _, found, _ = await bench.run("entries_reclaim", args, lane=lane)
    held = [
        Held(lane, entry.decode(), msgspec.json.decode(flat[flat.index(b"request") + 1], type=type(bench.request("x"))))
        for entry, _, flat in found
        if b"request" in flat
    ]
    return held + await bench.take(lane, consumer=consumer)


async def run_out(bench: Bench, *, rounds: int = 400) -> None:
    """Bring every request in the pool to its end, as good workers would, however long it takes."""
    await bench.beat(premium=1000, edge=0)
    for _ in range(rounds):
        await bench.advance(7)
        for lane in ("ingest", "ingest:batch"):
            for item in await taken_over(bench, lane):
                await bench.forward([item], f"gate:{item.request.priority}", claims=True)
        for lane in ("gate:interactive", "gate:standard", "gate:batch"):
            await _decide(bench, await taken_over(bench, lane))
        _, found, _ = await bench.run("entries_reclaim", ("deferred", "end", 0, "0-0", 1000), lane="deferred")
        notices = [entry.decode() for entry, _, _ in found] + await bench.notices(consumer="end")
        await bench.drain(*notices, consumer="end", most=1000)
        await _call(bench, await taken_over(bench, "premium"))
        if held := await taken_over(bench, "edge"):
            await bench.finish(*held)
        if not await lengths(bench) and not await waiting(bench):
            break
    # Grants that nobody settled are forgotten after a quarter of an hour, some at every call.
    while await exists(bench, "grants"):
        await bench.advance(1000)
        await bench.drain(consumer="end")


async def _decide(bench: Bench, held: list[Held]) -> None:
    verdicts = await bench.admit(held) if held else []
    for item, (decision, _) in zip(held, verdicts, strict=True):
        if decision in ("too_large", "expired", "queue_full"):
            await bench.finish(item, status="error", code="internal")


async def _call(bench: Bench, held: list[Held]) -> None:
    answers = await bench.start(held, consumer="end") if held else []
    for item, answer in zip(held, answers, strict=True):
        if answer == "started":
            await bench.finish(item, used=item.request.tokens)


async def work(
    bench: Bench, *, until: str = "", seconds: float, small: str = "interactive", every_s: float = 0.4
) -> float:
    """Small requests without end, each of a tenant of its own, somewhat more than fit, and workers that answer at once.

    Returns after how many seconds `until` was called for, or `seconds`.
    """
    newcomer_s = 0.0
    for step in range(round(seconds * 5)):
        while every_s and newcomer_s <= step / 5:
            newcomer_s += every_s
            name = f"{small}-{bench.now_us}-{newcomer_s}"
            await bench.send(bench.request(name, tenant=name, priority=small, **SMALL))
        await bench.drain(*await bench.notices())
        for held in await bench.take("premium"):
            await bench.start([held])
            await bench.finish(held)
            if held.request.id == until:
                return step / 5
        await bench.advance(0.2)
    return seconds


async def called(bench: Bench, *names: str, consumer: str = "w1") -> list[Held]:
    """Requests whose calls are under way."""
    await bench.send(*(bench.request(name, tenant=name) for name in names))
    held = await bench.take("premium", consumer=consumer)
    assert await bench.start(held, consumer=consumer) == ["started"] * len(held)
    return held
