"""A Cluster at work: a pool's slot moves to another node, then that node dies. The pool goes on, others never stop."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from redis.crc import key_slot

from tests.cluster.kit import Cluster, running
from tests.cluster.load import lives, load
from tests.integration.rig import open_rig
from tests.support import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

# What a caller of a pool that isn't concerned may notice on two busy cores.
_UNNOTICED_S = 1.5


async def test_c65_a_pool_that_moves_and_loses_its_node_goes_on(tmp_path: Path) -> None:
    """Nothing acknowledged is lost and nothing is answered twice; a pool on another node is served all the time."""
    with running(Cluster(tmp_path / "p")) as cluster, open_rig(place=cluster, pool=cluster.pool_on(0, "moved")) as rig:
        other = rig.configure(cluster.pool_on(1, "still"))
        runs = [rig.run(), other.run()]
        pids = [run.live for run in runs]
        moved, still = rig.keys, other.keys
        slot = key_slot(moved.root.encode())
        async with (
            load(cluster.url, moved.pool, durability="replica") as produced,
            load(cluster.url, still.pool, durability="replica") as beside,
        ):
            await produced.more(30)
            await beside.more(30)
            source, target = cluster.owner(moved.root), cluster.owner(f"{{{cluster.pool_on(2, 'x')}}}")

            began_s = time.monotonic()
            cluster.begin_move(slot, source, target)
            cluster.move_keys(slot, source, target, most=40)
            await beside.more(30)  # the slot stays half moved for a while
            cluster.move_keys(slot, source, target)
            cluster.end_move(slot, target)
            ended_s = time.monotonic()
            back_s = await produced.more(30)
            migrated = f"the slot moved in {ended_s - began_s:.2f} s, taken in again {back_s - ended_s:.2f} s later"

            successor = next(server for server in cluster.servers if server.follows(target))
            target.kill()
            killed_s = time.monotonic()
            await eventually(lambda: successor.primary, 20)
            promoted_s = time.monotonic()
            target.start()  # as a replica: until then none can have what is acknowledged
            again_s = await produced.more(30)
            produced.stop()
            beside.stop()
            results = [*await produced.results(), *await beside.results()]

        died = f"promoted {promoted_s - killed_s:.2f} s after its node died, taken in {again_s - killed_s:.2f} s after"
        pause_s = _longest_pause(list(beside.taken.values()))
        print(f"{migrated}; {died}; longest pause beside: {pause_s:.2f} s")
        assert {result.status for result in results} == {"ok"}
        for keys, load_ in ((moved, produced), (still, beside)):
            counts = lives(cluster.client, keys)
            assert set(counts.values()) == {1}
            assert {(id_, 0) for id_ in load_.taken} <= set(counts)
        assert pause_s < _UNNOTICED_S
        assert [run.live for run in runs] == pids
        assert rig.book().premium.rejected == 0
        assert not [run for run in runs if "Traceback" in run.text]


def _longest_pause(at_s: Sequence[float]) -> float:
    return max(later - earlier for earlier, later in itertools.pairwise(at_s))
