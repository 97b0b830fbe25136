"""One pool on a real server, with a clock that the test sets, and every script as a call.

`mend` may change a script's text before it runs: the planted faults come in by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from lua import Script, load
from pipeline.config import Deployment
from pipeline.limits import seed
from pipeline.message import Request, decode
from pipeline.store.rows import request_rows, result_row
from tokenweir.cancellation import checked, told
from tokenweir.connection import Argument, Connection
from tokenweir.keys import GROUPS
from tokenweir.wire import Result

START_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
PRIMARY = Deployment(name="primary", rpm=100, tpm=10_000)
# The clock is a key of the pool; a key that a script doesn't declare is an error in it.
_CLOCK = (
    "setmetatable(K, {__index = function(_, name) error('undeclared key ' .. tostring(name)) end}) "
    "local now = tonumber(redis.call('GET', ROOT .. 'clock'))"
)
LANES = tuple(GROUPS)


@cache
def on_our_clock(name: str) -> Script:
    """The script, on the clock that stands in the pool."""
    return load(name, parts={"clock": _CLOCK})


def altered(script: Script, text: str) -> Script:
    """The script with another text."""
    return script._replace(text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class Held(NamedTuple):
    """An entry that a consumer holds."""

    lane: str
    entry: str
    request: Request
    deployment: str = ""


class Drained(NamedTuple):
    """The reply of the drain."""

    premium: int
    edge: int
    expired: int
    wait_us: int
    kept: str


class Bench:
    """A pool whose budgets are warm and full, and which offers `premium` and `edge` slots."""

    def __init__(self, connection: Connection, deployments: Sequence[Deployment], mend: Callable[[Script], Script]):
        self.connection = connection
        self.keys = connection.keys
        self.deployments = tuple(deployments)
        self.now_us = START_US
        self._mend = mend
        self._budgets = [f"budget:{deployment.name}" for deployment in deployments]

    async def open(self, *, premium: int = 50, edge: int = 0) -> None:
        """Groups, limits, budgets born an hour ago, slots."""
        for lane in LANES:
            await self.redis("XGROUP", "CREATE", self.keys.key(lane), GROUPS[lane], "0", "MKSTREAM")
        await self.forward_to(START_US)
        await self.seed(self.deployments)
        await self.forward_to(START_US + 3600 * SECOND_US)
        await self.beat(premium=premium, edge=edge)

    async def seed(self, deployments: Sequence[Deployment]) -> None:
        """Put limits in place."""
        args: list[Argument] = []
        for deployment in deployments:
            args += seed(deployment)
        await self.run("limits_seed", args)

    async def redis(self, *words: Argument) -> Any:
        return await self.connection.command(*words)

    async def run(
        self,
        name: str,
        args: Sequence[Argument],
        *,
        lane: str = "",
        rest: Sequence[str] | None = None,
        bind: Mapping[str, str] | None = None,
    ) -> Any:
        """Run a script; `lane` is its source, `bind` names its other keys that the caller chooses."""
        bound = {f"<{key}>": value for key, value in (bind or {}).items()}
        if lane:
            bound["<source>"] = self.keys.key(lane)
        script = self._mend(on_our_clock(name))
        names = self._budgets if rest is None and script.rest else rest or ()
        return await self.connection.run(script, args, bind=bound, rest=names)

    # Time and workers

    async def forward_to(self, now_us: int) -> None:
        self.now_us = now_us
        await self.redis("SET", self.keys.key("clock"), now_us)

    async def advance(self, seconds: float) -> None:
        await self.forward_to(self.now_us + round(seconds * SECOND_US))

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    async def beat(self, *, premium: int = 50, edge: int = 0, consumer: str = "w1") -> int:
        return int(await self.run("worker_beat", [consumer, premium, edge, 10_000_000]))

    # Work

    def request(self, request_id: str, **fields: Any) -> Request:
        """A request of 100 tokens that came in now."""
        given: dict[str, Any] = {"prompt_tokens": 60, "output_tokens": 40, "entered_ms": self.now_ms}
        return Request(id=request_id, body=msgspec.Raw(b"{}"), **(given | fields))

    async def put(self, lane: str, *requests: Request, consumer: str = "w1") -> list[Held]:
        """Write entries into a lane and have `consumer` read them."""
        for request in requests:
            await self.redis("XADD", self.keys.key(lane), "*", "request", msgspec.json.encode(request))
        return await self.take(lane, consumer=consumer)

    async def arrive(self, *requests: Request, consumer: str = "w1") -> list[Held]:
        """Requests of one class as the gate gets them."""
        return await self.put(f"gate:{requests[0].priority}", *requests, consumer=consumer)

    async def take(self, lane: str, *, consumer: str = "w1", count: int = 1000) -> list[Held]:
        """Read new entries of a lane as `consumer`."""
        words = ("GROUP", GROUPS[lane], consumer, "COUNT", count, "STREAMS", self.keys.key(lane), ">")
        reply = await self.redis("XREADGROUP", *words)
        return [
            Held(lane, entry.decode(), decode(fields[b"request"]), fields.get(b"deployment", b"").decode())
            for _, found in reply or []
            for entry, fields in found
        ]

    async def notices(self, *, consumer: str = "w1") -> list[str]:
        """Read new notices for the drain as `consumer`."""
        words = ("GROUP", "deferred", consumer, "COUNT", 1000, "STREAMS", self.keys.key("deferred"), ">")
        return [entry.decode() for _, found in await self.redis("XREADGROUP", *words) or [] for entry, _ in found]

    async def admit(self, held: Sequence[Held], *, edge_queue: int = 0, most: int = 1000) -> list[tuple[str, str]]:
        """The gate's verdicts: decision, deployment."""
        reply = await self.run("gate_admit", [edge_queue, most, *self._rows(held)])
        words = [word.decode() for word in reply]
        return list(zip(words[::2], words[1::2], strict=True))

    async def send(self, *requests: Request, edge_queue: int = 0, most: int = 1000) -> list[str]:
        """Have new requests of one class decided; returns the decisions."""
        verdicts = await self.admit(await self.arrive(*requests), edge_queue=edge_queue, most=most)
        return [decision for decision, _ in verdicts]

    async def fill(self, prompt_tokens: int = 960) -> None:
        """Use up the burst, so that everything after it waits: by default, nothing is left of 1,000 tokens."""
        await self.send(self.request("fill", prompt_tokens=prompt_tokens, tenant="filler"))
        await self.finish(*await self.take("premium"))
        await self.drain(*await self.notices())

    async def drain(self, *notices: str, consumer: str = "w1", edge_queue: int = 0, most: int = 64) -> Drained:
        reply = await self.run("backlog_drain", [consumer, edge_queue, most, *notices])
        premium, edge, expired, wait_us, kept = reply
        return Drained(int(premium), int(edge), int(expired), int(wait_us), kept.decode())

    def _rows(self, held: Sequence[Held]) -> list[Argument]:
        return request_rows(((item.entry, item.request) for item in held), window_s=60)

    async def start(self, held: Sequence[Held], *, consumer: str = "w1", again: bool = False) -> list[str]:
        answers, _ = await self.run("calls_start", [consumer, int(again), *self._rows(held)])
        return [answer.decode() for answer, _ in answers]

    async def give_back(self, held: Sequence[Held], *, consumer: str = "w1") -> int:
        return int(await self.run("calls_return", [consumer, *self._rows(held)]))

    async def finish(
        self, *held: Held, used: int | None = None, pause_s: float = -1e-6, streamed: bool = False, **fields: Any
    ) -> list[int]:
        """Write terminal results of entries of one lane; 1 = it was the first. `pause_s` >= 0: the last call failed."""
        args: list[Argument] = [GROUPS[held[0].lane], 1000, 3600]
        for item in held:
            request = item.request
            answer = {"id": request.id, "status": "ok", "attempt": request.attempt, "replay": request.replay}
            result = msgspec.convert(answer | fields, Result)
            # All that isn't the prompt is output.
            counted = (
                (-1, -1) if used is None else (min(used, request.prompt_tokens), max(0, used - request.prompt_tokens))
            )
            args += (
                item.entry,
                result.attempt,
                *counted,
                round(pause_s * 1e6),
                "quota",
                0,
                *result_row(result, streamed=streamed),
            )
        return list(await self.run("entries_finish", args, lane=held[0].lane))[::3]

    async def retry(self, held: Held, *, wait_s: float = 0, pause_s: float = 0, limited: bool = False) -> int:
        """The attempt failed: into the backlog as the next one."""
        again = msgspec.structs.replace(held.request, attempt=held.request.attempt + 1)
        failure = (held.deployment, round(wait_s * 1e6), round(pause_s * 1e6), "provider_429", int(limited))
        args = [GROUPS[held.lane], msgspec.msgpack.encode(failure), *self._rows([held._replace(request=again)])]
        return int(await self.run("entries_retry", args, lane=held.lane))

    async def forward(self, held: Sequence[Held], to: str, *, claims: bool = False, inbox: str = "") -> list[str]:
        args: list[Argument] = [GROUPS[held[0].lane]]
        for item in held:
            request = item.request
            args += (item.entry, request.id, request.replay, int(claims), inbox)
            args += (int(request.stream), bytes(request.metadata), 1, msgspec.json.encode(request))
        reply = await self.run("entries_forward", args, lane=held[0].lane, rest=[to])
        return [answer.decode() for answer in reply]

    async def cancel(self, request_id: str, *, metadata: bytes = b"") -> Result | None:
        """Cancel a request; its terminal result, None = nobody knows it."""
        bind = {"status": self.keys.status(request_id)}
        kind, text = await self.run("request_cancel", [request_id, metadata, *told(request_id)], bind=bind)
        if kind == b"metadata":
            return await self.cancel(request_id, metadata=checked(text))
        return msgspec.json.decode(text, type=Result) if kind == b"done" else None

    async def bury(self, held: Held, *, deliveries: int = 3) -> list[int]:
        """Make a dead letter of an entry."""
        request = held.request
        result = Result(id=request.id, status="error", code="dead_letter", replay=request.replay)
        args: list[Argument] = [GROUPS[held.lane], 1000, 3600, held.lane, 1000]
        args += (held.entry, deliveries, "deliveries", "died", self.now_ms, request.attempt)
        args += result_row(result, streamed=False)
        return list(await self.run("entries_bury", args, lane=held.lane))
