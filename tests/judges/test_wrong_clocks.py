"""Workers whose own clocks are wrong by minutes: only the time of Redis counts."""

from __future__ import annotations

import time
import urllib.request

import pytest

from tests.integration.rig import Rig, open_rig
from tests.judges.load import LEASE_S, SEND_WITHIN_S, Stated, add, answers, assert_kept, small
from tests.judges.skewed_worker import SKEWS_S

pytestmark = pytest.mark.slow

_STATED = Stated()


def _levels(rig: Rig) -> set[float]:
    """How full the bucket of requests is, by each worker's own metrics."""
    found = set()
    for worker in rig.runs[0].started:
        with urllib.request.urlopen(f"http://127.0.0.1:{worker['metrics_port']}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        found |= {
            float(line.split()[-1])
            for line in lines
            if line.startswith("tokenweir_bucket_level_ratio") and "rpm" in line
        }
    return found


def test_c19_wrong_clocks_change_nothing() -> None:
    """Three workers, 90 s behind, right and 90 s ahead, under a flood: no 429, levels between empty and full.

    Nobody's request is taken for expired, and the times that results tell are those that passed.
    """
    call = {**_STATED._asdict(), "send_within_s": SEND_WITHIN_S}
    with open_rig(sandbox=_STATED._asdict(), call=call, lease_s=LEASE_S) as rig:
        rig.run(len(SKEWS_S), program=("-m", "tests.judges.skewed_worker"))
        clocks = [line["now_s"] for line in rig.runs[0].events("clock_shifted")]
        assert max(clocks) - min(clocks) > 170, "the clocks aren't wrong"
        answers(rig, add(rig, "first", small(0.1, _STATED, seed=8)), 20)
        began_s = time.monotonic()
        ids = add(rig, "flood", small(1.5, _STATED, seed=9), max_wait="60")
        levels, ats = set[float](), list[int]()
        while len(rig.results) < len(ids):
            rig.read()
            levels |= _levels(rig)
            ats.append(rig.budget()["at"])

        answers(rig, ids, 30)
        passed_ms = (time.monotonic() - began_s) * 1000
        waits = [rig.results[id_][0].waited_ms for id_ in ids]
        print(f"levels {min(levels):.3f} to {max(levels):.3f}, waits {min(waits):.0f} to {max(waits):.0f} ms")
        assert 0 <= min(levels) <= max(levels) <= 1
        assert ats == sorted(ats), "time went back"
        assert 0 <= min(waits) <= max(waits) <= passed_ms
        rig.assert_clean()
        assert_kept(rig, rig.sandbox)
