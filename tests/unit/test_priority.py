"""Who goes first in the backlog."""

from __future__ import annotations

import msgspec
import pytest

from pipeline.message import Request
from pipeline.priority import score
from tokenweir.wire import Class

NOW_MS = 1_700_000_000_000


def scored(priority: Class, *, waited_s: float = 0, window_s: float = 60) -> float:
    request = Request(id="a", body=msgspec.Raw(b"{}"), priority=priority, entered_ms=round(NOW_MS - waited_s * 1000))
    return score(request, window_s=window_s)


def test_of_two_that_came_together_the_higher_class_goes_first() -> None:
    """Interactive before standard before batch."""
    assert scored("interactive") < scored("standard") < scored("batch")


def test_within_a_class_the_older_goes_first() -> None:
    """First come, first served."""
    assert scored("batch", waited_s=2) < scored("batch", waited_s=1)


@pytest.mark.parametrize(("low", "windows"), [("standard", 1), ("batch", 10)])
@pytest.mark.parametrize("window_s", [6, 60])
def test_low_work_gives_way_for_so_many_windows(low: Class, windows: int, window_s: float) -> None:
    """Standard work that waited a window longer, and batch work that waited ten, go before a fresh interactive one."""
    just_over, just_under = windows * window_s + 1, windows * window_s - 1

    fresh = scored("interactive", window_s=window_s)

    assert scored(low, waited_s=just_over, window_s=window_s) < fresh
    assert scored(low, waited_s=just_under, window_s=window_s) > fresh


def test_milliseconds_survive_the_way_into_the_script() -> None:
    """Two requests a millisecond apart keep their order as text, too."""
    assert float(repr(scored("batch"))) - float(repr(scored("batch", waited_s=0.001))) == 1
