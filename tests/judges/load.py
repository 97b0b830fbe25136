"""More work than the limits allow, for twelve worker processes, and what the books on both sides say of it."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from pipeline.sandbox.calls import Call
from pipeline.sandbox.control import Book, CallPage
from pipeline.sandbox.process import start_sandbox
from pipeline.sandbox.ready import Ready
from pipeline.sandbox.settings import SandboxSettings
from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig

WORKERS = 12
# A busy machine may take as long as half of this to make a granted call.
SEND_WITHIN_S = 0.5
# Nobody dies here: a worker that a busy machine stops for seconds mustn't be taken for dead.
LEASE_S = 30.0
# Of each request here, as the provider counts them; about.
_PROMPT_TOKENS = 15


class Stated(NamedTuple):
    """What a provider allows, and how it counts: the same for the gate and for its judge."""

    rpm: int = 240
    tpm: int = 24_000
    window_s: float = 6.0

    @property
    def slowest_s(self) -> float:
        """In so long the gate refills all of a limit: the window, the way to the provider, and a slot."""
        return self.window_s + SEND_WITHIN_S + self.window_s / 60


@contextmanager
def twelve_workers(stated: Stated, *, mode: str, preset: str, more: str = "", **sandbox: Any) -> Iterator[Rig]:
    """Twelve worker processes before a provider that counts by `mode`; `more` is appended to their configuration."""
    settings = {**stated._asdict(), "enforcement": mode, **sandbox}
    call = {**stated._asdict(), "enforcement": preset, "send_within_s": SEND_WITHIN_S}
    with open_rig(sandbox=settings, call=call, lease_s=LEASE_S) as rig:
        rig.config.write_text(rig.config.read_text() + more)
        rig.run(WORKERS)
        yield rig


@contextmanager
def another_provider(stated: Stated, name: str) -> Iterator[tuple[Ready, str]]:
    """A second provider, and the lines that make it a deployment of the pool `main`."""
    limits = stated._asdict()
    with start_sandbox(SandboxSettings(time_scale=10.0, **limits)) as ready:
        values = {"name": name, "base_url": ready.premium, "api_key": "sk-second-0123456789", **limits}
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        yield ready, "\n".join(["[[pools.main.deployments]]", *lines, f"send_within_s = {SEND_WITHIN_S}", ""])


def add(rig: Rig, name: str, caps: Sequence[int], **fields: str) -> list[str]:
    """One request that only premium may answer for each of `caps`, its output cap; returns their ids.

    Args:
        fields: more of every entry.
    """
    ids = [f"{name}-{i}" for i in range(len(caps))]
    pipe = rig.redis.pipeline(transaction=False)
    for id_, cap in zip(ids, caps, strict=True):
        body = {"messages": [{"role": "user", "content": f"[{id_}] and now?"}], "max_tokens": cap}
        entry: dict[Any, Any] = {"id": id_, "body": json.dumps(body), "complexity": "complex", **fields}
        pipe.xadd(rig.keys.key("ingest"), entry)
    pipe.execute()
    return ids


def mixed(windows: float, stated: Stated, *, seed: int) -> list[int]:
    """Output caps that are short of tokens for so many windows: some near a fiftieth of the limit, few a twentieth."""
    draw = random.Random(seed)
    largest = (stated.tpm // 400, stated.tpm // 53, stated.tpm // 21)
    caps: list[int] = []
    while sum(caps) + _PROMPT_TOKENS * len(caps) < windows * stated.tpm:
        size = draw.choices(largest, (80, 14, 6))[0]
        caps.append(draw.randint(size // 2, size))
    return caps


def small(windows: float, stated: Stated, *, seed: int) -> list[int]:
    """Output caps that are short of requests for so many windows."""
    draw = random.Random(seed)
    return [draw.randint(2, stated.tpm // stated.rpm // 4) for _ in range(round(windows * stated.rpm))]


def rest(rig: Rig, stated: Stated, share: float, *deployments: str) -> None:
    """Return when nothing has been granted for so long that `share` of the limits can go at once."""
    quiet_s = (share + 0.05) * stated.slowest_s
    names = deployments or ("primary",)
    is_full = lambda: all(time.time() - rig.budget(name)["at"] / 1e6 > quiet_s for name in names)  # noqa: E731
    wait_until(is_full, 20, why="the buckets don't fill")


def answers(rig: Rig, ids: Sequence[str], timeout_s: float) -> None:
    """All of `ids` are answered by premium, at the first attempt."""
    results = rig.wait_for(ids, timeout_s)
    found = Counter((result.status, result.code, result.route, result.attempt) for result in results)
    assert found == {("ok", "", "premium", 1): len(ids)}, found


def grants_started(rig: Rig, deployment: str = "primary") -> float:
    """Grants charged, less those that workers gave back because they could not call in time."""
    labels = {"pool": rig.keys.pool, "deployment": deployment, "outcome": "given_back"}
    given_back = rig.metric("tokenweir_provider_calls_total", **labels)
    return int(rig.budget(deployment)["granted"]) - given_back


def calls(provider: Ready) -> list[Call]:
    """The calls that reached the premium side, one by one."""
    page = msgspec.json.decode(_get(f"{provider.control}/calls"), type=CallPage)
    return [call for call in page.calls if call.side == "premium"]


def book(provider: Ready) -> Book:
    """The provider's ledger."""
    return msgspec.json.decode(_get(f"{provider.control}/ledger"), type=Book)


def used(made: Sequence[Call], stated: Stated) -> float:
    """The share of the limit that ran short, from the first to the last of calls that all waited from the start on."""
    first, last = made[0].at_s, made[-1].at_s
    allowed = (last - first) / stated.window_s
    tokens = sum(call.tokens for call in made[:-1])
    return max((len(made) - 1) / (stated.rpm * allowed), tokens / (stated.tpm * allowed))


def assert_kept(rig: Rig, provider: Ready, deployment: str = "primary") -> None:
    """The provider refused nothing, no window held more than its limit, and it saw the calls that were granted."""
    ledger = book(provider).premium
    assert (ledger.rejected, ledger.rejected_by) == (0, {})
    assert 0 < ledger.worst_window.requests <= 1
    assert 0 < ledger.worst_window.tokens <= 1
    assert ledger.calls == grants_started(rig, deployment)
    print(
        f"{deployment}: {ledger.calls} calls, granted {rig.budget(deployment)['granted']}, worst window "
        f"{ledger.worst_window.requests:.3f} of requests, {ledger.worst_window.tokens:.3f} of tokens"
    )


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as reply:
        data: bytes = reply.read()
        return data
