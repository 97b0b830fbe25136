"""Under Sentinels: the primary gives way, or dies. Work goes on at its successor, with all that was acknowledged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.kit import DOWN_AFTER_S, NAME, Server, Watched, ask, running
from tests.cluster.load import Load, lives, load
from tests.integration.rig import Rig, open_rig
from tests.support import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

# What is ours of it: to notice, to ask the Sentinels, to connect.
_NOTICE_S = 2.0
_POOL = "sentinel"


@contextmanager
def deployed(folder: Path, *options: str, replicas: int) -> Iterator[Rig]:
    """A primary with so many replicas under Sentinels, and two workers at work."""
    place = Watched(folder / "p", options, replicas=replicas)
    with running(place), open_rig(place=place, pool=_POOL) as opened:
        opened.run(2)
        opened.ask("the first one warms up")
        yield opened


async def test_c57_a_primary_that_gives_way_is_followed(tmp_path: Path) -> None:
    """SENTINEL FAILOVER, nobody crashes: the successor serves at once, and loses nothing that `replica` acknowledged.

    The old primary takes requests for ten seconds more, until the Sentinels tell it; who waits for a replica isn't
    told then that these are safe.
    """
    with deployed(tmp_path, replicas=1) as rig:
        watched: Watched = rig.store
        old, new, pids = watched.primary, watched.replica, rig.runs[0].live
        async with load(watched.url, _POOL, durability="replica") as produced, load(watched.url, "hasty") as hasty:
            await produced.more(40)
            ask(watched.ports[0], "SENTINEL", "FAILOVER", NAME)
            await eventually(lambda: new.primary, 20)
            promoted_s = time.monotonic()

            def served() -> bool:
                id_, taken_s = list(hasty.taken.items())[-1]
                return taken_s > promoted_s and bool(new.client.exists(hasty.keys.status(id_)))

            await eventually(served, 5)
            back_s = time.monotonic() - promoted_s
            await eventually(lambda: not old.primary, 30)
            await produced.more(40)
            produced.stop()
            results = await produced.results()

        lost = sum(not new.client.exists(hasty.keys.status(id_)) for id_ in hasty.taken)
        print(f"served {back_s:.2f} s after its promotion; {lost} of {len(hasty.taken)} lost that nobody waited for")
        assert {result.status for result in results} == {"ok"}
        _check(rig, new, produced, pids)


async def test_c57_a_primary_that_dies_is_replaced(tmp_path: Path) -> None:
    """kill -9 under load: served again as soon as the Sentinels have chosen, and what was acknowledged is answered."""
    with deployed(tmp_path, "--min-replicas-to-write", "1", replicas=2) as rig:
        watched: Watched = rig.store
        old, pids = watched.primary, rig.runs[0].live
        others = [server for server in watched.servers if server is not old]
        async with load(watched.url, _POOL, durability="replica") as produced:
            await produced.more(40)
            old.kill()
            killed_s = time.monotonic()
            await eventually(lambda: any(server.primary for server in others), 20)
            promoted_s = time.monotonic()
            back_s = await produced.more(1)
            await produced.more(60)
            produced.stop()
            results = await produced.results()

        said = f"promoted after {promoted_s - killed_s:.2f} s, taken in again after {back_s - killed_s:.2f} s"
        print(f"{said} (down-after {DOWN_AFTER_S:g} s)")
        assert back_s - promoted_s < _NOTICE_S, said
        assert {result.status for result in results} == {"ok"}
        _check(rig, watched.primary, produced, pids)


def _check(rig: Rig, new: Server, produced: Load, pids: list[int]) -> None:
    """Each request has one result at the new primary, no worker ended, and no budget was spent twice."""
    counts = lives(new.client, rig.keys)
    assert set(counts.values()) == {1}
    assert {(id_, 0) for id_ in produced.taken} <= set(counts)
    assert rig.runs[0].live == pids
    assert rig.book().premium.rejected == 0
    assert "Traceback" not in rig.runs[0].text
