"""What is said in the end: the table, the promises and the JSON, from measured sides."""

from __future__ import annotations

import io
import json
import random
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console, RenderableType

from pipeline.demo.baseline import backoff_s
from pipeline.demo.chart import chart
from pipeline.demo.report import as_json, closing, promises
from pipeline.demo.story import Story
from pipeline.demo.tally import Side, Tally
from pipeline.demo.view import Snapshot, View, panel

_STORY = Story()
_BASELINE = Side(provider_429=541, provider_calls=1_085, requests=543, answered=540, lost=3, ttft_p99_s=9.1)
_GOOD = Side(
    provider_calls=567,
    requests=584,
    answered=584,
    premium=95,
    edge=17,
    deferred=472,
    ttft_p99_s=0.82,
    used_ratio=0.945,
    windows=4,
    minute_s=6.0,
    per_second=[(0, 3, 0), (1, 5, 2)],
)
_SNAPSHOT = Snapshot(
    title="2 of 2: with tokenweir",
    elapsed_s=12.5,
    requests_used=0.31,
    tokens_used=0.97,
    provider_429=12_345,
    in_flight=128,
    waiting=400,
    requests=1_234,
    answered=1_000,
    premium=999,
    edge=100,
    deferred=999,
    ttft_p99_s=123.45,
)


def _text(renderable: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=80, color_system=None, legacy_windows=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, ""),
        ({"provider_429": 1}, "never said 429"),
        ({"lost": 1}, "lost"),
        ({"duplicates": 1}, "twice"),
        ({"used_ratio": 0.89}, "of the budget"),
    ],
)
def test_each_promise_breaks_by_its_own_figure(change: dict[str, float], broken: str) -> None:
    """A single bad figure breaks the one promise that is about it."""
    found = [
        promise.text for promise in promises(_BASELINE, msgspec.structs.replace(_GOOD, **change)) if not promise.kept
    ]

    assert len(found) == bool(broken)
    assert broken in "".join(found)


def test_a_baseline_without_429s_proves_nothing() -> None:
    """If the story is harmless without tokenweir, the demo says so instead of claiming success."""
    calm = msgspec.structs.replace(_BASELINE, provider_429=0)

    assert [promise.kept for promise in promises(calm, _GOOD)].count(False) == 1


def test_the_closing_table_fits_eighty_columns() -> None:
    """Both sides, with demo seconds and real ones; no line is wrapped or cut."""
    text = _text(closing(_BASELINE, _GOOD, _STORY))

    assert max(map(len, text.splitlines())) <= 80
    assert "9.100 s (91.00 s)" in text
    assert "0.820 s (8.20 s)" in text
    assert "\u2026" not in text


def test_the_json_has_every_promised_key_on_both_sides() -> None:
    """One object, with the same keys for the baseline."""
    said = json.loads(as_json(_BASELINE, _GOOD))

    counts = {"provider_429", "requests", "answered", "lost", "duplicates", "premium", "edge", "deferred"}
    times = {"ttft_p50_s", "ttft_p99_s", "added_wait_p50_s", "added_wait_p99_s", "minute_s", "seconds"}
    assert (counts | times | {"used_ratio"}) <= said.keys()
    assert said["baseline"].keys() == said.keys() - {"baseline"}
    assert said["baseline"]["provider_429"] == 541


def test_the_live_view_fits_eighty_columns() -> None:
    """Large figures don't break the panel, and it says how long a minute lasts."""
    text = _text(panel(_SNAPSHOT, _STORY))

    assert max(map(len, text.splitlines())) <= 80
    assert "A provider minute lasts 6 s here; latencies and pauses are divided alike." in text
    assert "12,345" in text


def test_without_a_terminal_there_is_a_line_a_minute() -> None:
    """In a log the view is one plain line for each provider minute of each run."""
    console = Console(file=io.StringIO(), width=80, color_system=None, force_terminal=False)
    with View(console, _STORY) as view:
        for tenths in range(130):
            view.show(msgspec.structs.replace(_SNAPSHOT, elapsed_s=tenths / 10))

    assert isinstance(console.file, io.StringIO)
    assert len(console.file.getvalue().splitlines()) == 3


def test_the_picture_is_well_formed() -> None:
    """The SVG parses and has a bar for every second of both runs."""
    baseline = msgspec.structs.replace(_BASELINE, per_second=[(0, 4, 9)])

    root = ElementTree.fromstring(chart(baseline, _GOOD, _STORY))

    assert len([one for one in root.iter() if one.get("fill") == "#d64545"]) == 1 + 3  # the legend's, and each second's


def test_users_without_a_first_token_count_with_their_wait() -> None:
    """Who still waits at the end isn't left out of the percentiles."""
    tally = Tally()
    tally.wished("a", 1.0, batch=False)
    tally.wished("b", 2.0, batch=False)
    tally.wished("c", 2.0, batch=True)
    tally.heard("a", 1.5)
    tally.ended("a")

    side = tally.side(10.0)

    assert (side.ttft_p50_s, side.ttft_p99_s) == (0.5, 8.0)
    assert (side.requests, side.answered, side.lost) == (3, 1, 2)


def test_deferred_requests_are_not_answered_at_once() -> None:
    """What we add is measured on those that were answered at once, and only on users' requests."""
    tally = Tally()
    tally.went("premium", ttft_s=0.1, added_s=0.01, batch=False)
    tally.went("deferred", ttft_s=3.0, added_s=2.9, batch=False)
    tally.went("premium", ttft_s=5.0, added_s=4.9, batch=True)

    side = tally.side(0.0)

    assert (side.added_wait_p99_s, side.ttft_now_p99_s) == (0.01, 0.1)
    assert (side.premium, side.deferred, side.user_deferred) == (2, 1, 1)


def test_the_baseline_backs_off_as_the_users_did() -> None:
    """1, 2, 4, 8 and again 8 s at real scale, each within 20 %."""
    pauses = [backoff_s(refusals, _STORY, random.Random(1)) * _STORY.time_scale for refusals in (1, 2, 3, 4, 5)]

    assert pauses == [pytest.approx(wanted, rel=0.2) for wanted in (1, 2, 4, 8, 8)]
