"""Limits are changed while workers run: all of them count with the new ones at once, and nobody restarts."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Sequence

import msgspec

from pipeline.sandbox.control import CallPage
from tests.integration.processes import wait_until
from tests.integration.rig import WINDOW_S, Rig, open_rig
from tests.integration.test_feedback import command

WORKERS = 3
HIGH, LOW = 120, 30


def arrivals(rig: Rig) -> list[float]:
    """When each call reached the provider, on the monotonic clock that all processes share."""
    with urllib.request.urlopen(f"{rig.sandbox.control}/calls", timeout=10) as reply:
        page = msgspec.json.decode(reply.read(), type=CallPage)
    return [call.at_s for call in page.calls if call.side == "premium"]


def fullest(at_s: Sequence[float], *, since_s: float) -> int:
    """The most calls in any window that begins at `since_s` or later."""
    later = [at for at in at_s if at >= since_s]
    return max((sum(start <= at < start + WINDOW_S for at in later) for start in later), default=0)


def started_by_worker(rig: Rig) -> list[int]:
    """How many calls each live worker has started."""
    counts = []
    for worker in rig.runs[-1].started:
        with urllib.request.urlopen(f"http://127.0.0.1:{worker['metrics_port']}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        wanted = (line for line in lines if line.startswith("tokenweir_provider_calls_total") and '"started"' in line)
        counts.append(int(sum(float(line.rpartition(" ")[2]) for line in wanted)))
    return counts


def test_a_limit_is_lowered_and_raised_under_load() -> None:
    """While three workers are saturated, a lower limit holds in every later window, a higher one is used at once."""
    with open_rig(pool="live", call={"rpm": HIGH}) as rig:
        rig.run(WORKERS)
        ids = [rig.add(f"q {i}", complexity="complex") for i in range(400)]
        wait_until(lambda: len(arrivals(rig)) > HIGH * 0.75, 20, why="the high limit isn't used")

        command(rig, "limits", "set", "primary", f"rpm={LOW}")
        lowered_s = time.monotonic()
        # The windows that follow: what was charged under the high limit has to leave them first.
        wait_until(lambda: time.monotonic() > lowered_s + 1.5 * WINDOW_S, 2 * WINDOW_S)
        wait_until(lambda: arrivals(rig)[-1] > lowered_s + WINDOW_S, 2 * WINDOW_S, why="nothing goes any more")
        before = started_by_worker(rig)
        raising_s = time.monotonic()
        command(rig, "limits", "set", f"rpm={HIGH}")
        raised_s = time.monotonic()
        wait_until(lambda: fullest(arrivals(rig), since_s=raised_s) > LOW, WINDOW_S, why="the raised limit isn't used")

        at_s = arrivals(rig)
        by_all = [now - then for then, now in zip(before, started_by_worker(rig), strict=True)]
        # Calls granted before the change may still have been on their way for half a second.
        under_low = [at for at in at_s if at < raising_s]
        assert fullest(under_low, since_s=lowered_s + 0.5) <= LOW
        assert fullest(at_s, since_s=0) <= HIGH
        # In a second the low limit allows no more than its burst and its rate: 3 + 5.
        in_first_second = sum(raised_s <= at < raised_s + 1 for at in at_s)
        assert in_first_second >= 12, f"only {in_first_second} calls in the first second of the raised limit"
        assert all(by_all), f"not every worker took part: {by_all}"
        assert rig.book().premium.rejected == 0
        _cancel_rest(rig, ids)


def _cancel_rest(rig: Rig, ids: Sequence[str]) -> None:
    """Raise the limit so far that all that waits is answered: nothing was lost on the way."""
    command(rig, "limits", "set", "rpm=5000")
    results = rig.wait_for(ids, 30)
    assert {result.status for result in results} == {"ok"}
    rig.assert_clean(timeout_s=20)
