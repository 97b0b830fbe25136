"""The judge tells good regulation from bad: two callers of known behaviour under every mode, on a virtual clock."""

from collections import deque
from heapq import heappop, heappush
from random import Random
from typing import Protocol, get_args

import pytest

from pipeline.sandbox.limits import Limits
from pipeline.sandbox.meter import WorstWindow
from pipeline.sandbox.settings import Enforcement

_LIMIT, _WINDOW_S, _LATE_S = 500, 60.0, 1.0
_SLOT_S = _WINDOW_S / 60


class _Caller(Protocol):
    def may_call(self, now: float) -> bool: ...


class _Textbook:
    """A bucket of capacity L, refilled at L a window: what most limiters do."""

    def __init__(self) -> None:
        self._level, self._at = float(_LIMIT), 0.0

    def may_call(self, now: float) -> bool:
        self._level = min(_LIMIT, self._level + (now - self._at) * _LIMIT / _WINDOW_S)
        self._at = now
        if self._level < 1:
            return False
        self._level -= 1
        return True


class _Careful:
    """A small bucket that paces, and a window of slots that covers every window the provider may count in."""

    def __init__(self) -> None:
        self._span_s = _WINDOW_S + _LATE_S + _SLOT_S
        self._level, self._at = 0.0, 0.0
        self._slots: deque[int] = deque()

    def may_call(self, now: float) -> bool:
        self._level = min(_LIMIT / 10, self._level + (now - self._at) * _LIMIT / self._span_s)
        self._at = now
        slot = int(now / _SLOT_S)
        while self._slots and self._slots[0] < int((now - _WINDOW_S - _LATE_S) / _SLOT_S):
            self._slots.popleft()
        if self._level < 1 or len(self._slots) >= _LIMIT:
            return False
        self._level -= 1
        self._slots.append(slot)
        return True


def _play(caller: _Caller, mode: Enforcement, *, minutes: int = 10) -> tuple[int, int, float]:
    """Calls made, calls refused, and the fullest window, when work comes for 100 s and rests for 33 s, over and over.

    The provider counts a call up to a second after the caller decided.
    """
    limits, meter, dice = Limits(mode, {"rpm": _LIMIT}, _WINDOW_S, seed=7), WorstWindow(_LIMIT, _WINDOW_S), Random(7)
    underway: list[float] = []
    made = refused = 0
    for tick in range(minutes * 60 * 50):
        now = 1000 + tick / 50
        while underway and underway[0] <= now:
            at = heappop(underway)
            made += 1
            if limits.charge({"rpm": 1}, at).admitted:
                meter.record(1, at)
            else:
                refused += 1
        while now % 133 < 100 and caller.may_call(now):
            heappush(underway, now + dice.uniform(0.02, _LATE_S))
    return made, refused, meter.worst


@pytest.mark.parametrize("mode", get_args(Enforcement))
def test_a_textbook_bucket_is_caught(mode: Enforcement) -> None:
    """The usual limiter overruns every way of counting but its own."""
    made, refused, _ = _play(_Textbook(), mode)

    assert made > 4000
    assert refused <= 5 if mode == "bucket" else refused > 400


@pytest.mark.parametrize("mode", ["bucket", "bucket/6", "sliding", "fixed"])
def test_a_careful_caller_is_acquitted(mode: Enforcement) -> None:
    """Whoever keeps every window under the limit and paces is refused nothing, and the meter agrees."""
    made, refused, worst = _play(_Careful(), mode)

    assert made > 2000
    assert refused == 0
    assert 0.5 < worst <= 1


@pytest.mark.parametrize("mode", ["10s", "1s"])
def test_slices_are_stricter_than_any_window(mode: Enforcement) -> None:
    """A burst that every minute has room for is still too much for one slice of it."""
    _, refused, worst = _play(_Careful(), mode)

    assert refused > 0
    assert worst <= 1


def test_the_meter_shows_what_a_bucket_lets_through() -> None:
    """A provider with a bucket of L admits nearly twice L in its worst window, and the meter says so."""
    _, _, worst = _play(_Textbook(), "bucket")

    assert 1.4 < worst < 2
