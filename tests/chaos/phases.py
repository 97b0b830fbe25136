"""What the soak does to a deployment: troubles of a moment, and phases that last until they are undone."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from tests.chaos import troubles
from tests.chaos.ground import Ground, some_worker
from tokenweir import Client

Undo = Callable[[], None]
_FAULTS = ("status:500", "status:503", "status:429", "cut", "reset", "empty_choices", "error", "html", "hang")
_CANCELLED_AT_ONCE = 20
_FAT_BYTES = 400_000


class Phase(NamedTuple):
    """One of the troubles: its name, what is done, for how long (s, 0 = a moment), and what it can't overlap with."""

    name: str
    begin: Callable[[Ground, random.Random], Undo | None]
    shortest_s: float = 0.0
    longest_s: float = 0.0
    place: str = ""


def _term(ground: Ground, draw: random.Random) -> None:
    """A worker is told to stop; its supervisor starts another."""
    pid, began_s = some_worker(ground, draw), time.time()
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    ground.struck("term", began_s, pid)


def _stall(ground: Ground, draw: random.Random) -> Undo:
    """A worker stands still, and may wake up after others have taken over what it held."""
    pid = some_worker(ground, draw)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    ground.struck("stall", time.time(), pid)

    def undo() -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return undo


def _network(what: str, act: Callable[[Ground], None]) -> Callable[[Ground, random.Random], Undo]:
    def begin(ground: Ground, _draw: random.Random) -> Undo:
        began_s = time.time()
        act(ground)

        def undo() -> None:
            ground.proxy.mend()
            ground.struck(what, began_s)

        return undo

    return begin


def _break(ground: Ground, _draw: random.Random) -> None:
    ground.proxy.break_all()
    ground.struck("break", time.time())


def _faults(side: str) -> Callable[[Ground, random.Random], Undo]:
    def begin(ground: Ground, draw: random.Random) -> Undo:
        kind, began_s = draw.choice(_FAULTS), time.time()
        ground.rig.order(kind=kind, side=side, times=8 if kind == "hang" else None)

        def undo() -> None:
            heal(ground)
            ground.struck(f"{side} {kind}", began_s)

        return undo

    return begin


def heal(ground: Ground) -> None:
    """Providers answer again."""
    order = urllib.request.Request(f"{ground.rig.sandbox.control}/faults", method="DELETE")
    urllib.request.urlopen(order, timeout=10).close()


def _lower(ground: Ground, draw: random.Random) -> Undo:
    """An operator lowers the limits for a while."""
    rpm, began_s = draw.randint(300, 900), time.time()
    before = ground.rig.settings["call"]["rpm"]
    _operator(ground, rpm)

    def undo() -> None:
        _operator(ground, before)
        ground.struck("limits", began_s)

    return undo


def _operator(ground: Ground, rpm: int) -> None:
    line = [sys.executable, "-m", "pipeline.cli", "limits", "set", "primary", f"rpm={rpm}"]
    line += ["--config", str(ground.direct_config)]
    subprocess.run(line, check=True, capture_output=True, timeout=60)


def _garbage(ground: Ground, draw: random.Random) -> None:
    """Entries that nobody can understand, and such that are far too large."""
    rows: list[dict[str | bytes, str | bytes]] = [
        {"nothing": "of ours"},
        {"body": "{not json", "id": f"broken-{draw.randrange(10**9)}"},
        {b"prompt": b"\xff\xfe half a \xed\xa0\x80", "class": "royal"},
        {"prompt": "fat " * (_FAT_BYTES // 4), "id": f"fat-{draw.randrange(10**9)}"},
        {"body": json.dumps({"messages": [{"role": "user", "content": "x" * 1_200_000}]})},
    ]
    ground.sent += [ground.rig.add_raw(row) for row in rows]
    ground.struck("garbage", time.time())


def _cancel(ground: Ground, _draw: random.Random) -> None:
    """A producer changes its mind about what it asked for last."""
    began_s = time.time()
    ids = [id_ for id_ in ground.sent[-200:] if id_ not in ground.results][-_CANCELLED_AT_ONCE:]

    async def cancel() -> None:
        async with Client(ground.rig.store.url) as client:
            await client.cancel_many(ids)

    asyncio.run(cancel())
    ground.struck("cancel", began_s)


PHASES = (
    Phase("kill", troubles.kill),
    Phase("kill again", troubles.kill),
    Phase("term", _term),
    Phase("stall", _stall, 1.0, 7.0),
    Phase("freeze", troubles.freeze),
    Phase("restart", troubles.restart),
    Phase("script flush", troubles.flush_scripts),
    Phase("cut", troubles.cut_replies),
    Phase("break", _break),
    Phase("down", _network("down", lambda ground: ground.proxy.cut()), 0.2, 4.0, "network"),
    Phase("requests lost", _network("silent", lambda ground: ground.proxy.swallow("requests")), 0.5, 6.0, "network"),
    Phase("replies lost", _network("silent", lambda ground: ground.proxy.swallow("replies")), 0.5, 6.0, "network"),
    Phase("slow", _network("slow", lambda ground: ground.proxy.slow(0.02)), 1.0, 4.0, "network"),
    Phase("premium", _faults("premium"), 1.0, 4.0, "providers"),
    Phase("premium again", _faults("premium"), 1.0, 4.0, "providers"),
    Phase("edge", _faults("edge"), 1.0, 5.0, "providers"),
    Phase("limits", _lower, 3.0, 8.0, "limits"),
    Phase("garbage", _garbage),
    Phase("cancel", _cancel),
)


class Moment(NamedTuple):
    """A phase at its place in time: seconds from the start until it begins and ends, and what its choices come from."""

    at_s: float
    until_s: float
    phase: Phase
    seed: int


def timeline(seed: int, seconds: float) -> list[Moment]:
    """What happens when: the same for the same seed. One every two seconds, some of them at the same time."""
    draw, moments, busy, at_s = random.Random(seed), [], {"": 0.0}, 0.0
    while (at_s := at_s + draw.uniform(0.5, 3.5)) < seconds:
        phase = draw.choice(PHASES)
        until_s = at_s + draw.uniform(phase.shortest_s, phase.longest_s)
        number = draw.randrange(2**32)
        if phase.place and busy.get(phase.place, 0.0) > at_s - 0.5:
            continue
        busy[phase.place] = until_s
        moments.append(Moment(at_s, until_s, phase, number))
    return moments
