"""What `tokenweir plan` says to people: stories, pictures, and what is wrong with their files."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from pipeline.plan.trace import Trace
from tests.plan.conftest import Plan

_EDGE = """
[pools.main.edge]
concurrency = 1
[[pools.main.deployments]]
rpm = 500
tpm = 30_000
"""
_SVG = "{http://www.w3.org/2000/svg}"
_LINE = {"at": 0.5, "prompt_tokens": 300, "output_tokens": 200}


def test_story_tells_waits_and_the_edges_share(plan: Plan) -> None:
    """How long users and the batch job wait, and how much the edge takes, is told for each class."""
    said = plan("--profile", "story", "--mode", "sliding", "--json", config=_EDGE)

    figures = said.json["modes"]["sliding"]
    assert said.code == 0
    assert figures["rejected"] == 0
    assert 0 < figures["edge_share"] < 0.4
    for name in ("interactive", "batch"):
        spread = figures["waits"][name]
        assert 0 <= spread["p50"] <= spread["p95"] <= spread["p99"]
    assert figures["waits"]["batch"]["count"] == 400
    assert figures["waits"]["interactive"]["p50"] < figures["waits"]["batch"]["p50"]


def test_table_has_a_line_a_mode(plan: Plan) -> None:
    """Without options for machines the answer is a table, with a verdict at its end."""
    said = plan("--profile", "story", "--minutes", "2", "--edge-slots", "4")

    assert said.code == 0
    for mode in ("sliding", "fixed", "bucket", "bucket/6"):
        assert any(line.startswith(mode) for line in said.out.splitlines())
    assert said.out.splitlines()[-1] == "ok   no promise broken"


def _write(folder: Path, *lines: object) -> str:
    path = folder / "requests.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


def test_own_traffic_is_played(plan: Plan, tmp_path: Path) -> None:
    """A file of what really came is played to its end: times as seconds or as dates, classes, simple work."""
    lines: list[object] = [
        {"at": f"2026-07-01T09:{30 + index // 60}:{index % 60:02}Z", "prompt_tokens": 200, "output_tokens": 300}
        | {"class": ("interactive", "standard", "batch")[index % 3], "task": "intent" if index % 2 else "", "more": 1}
        for index in range(100)
    ]

    said = plan("--traffic", _write(tmp_path, *lines, ""), "--mode", "sliding", "--json", config=_EDGE)

    figures = said.json["modes"]["sliding"]
    assert said.code == 0
    assert sum(each["count"] for each in figures["waits"].values()) == 100
    assert set(figures["waits"]) == {"interactive", "standard", "batch"}
    assert figures["edge_share"] > 0


def test_traffic_keeps_its_pace(tmp_path: Path) -> None:
    """Requests come as far apart as they stand in the file, whatever time it begins with."""
    lines = [{**_LINE, "at": at} for at in (0, 5, 5, 7.5)]

    trace = Trace(Path(_write(tmp_path, *lines)), frozenset())

    assert [asked.at_us for asked in trace.arrivals()] == [0, 5_000_000, 5_000_000, 7_500_000]
    assert trace.length().seconds == 7.5


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{not json", "line 2: JSON is malformed"),
        ({"at": 1, "prompt_tokens": 3}, "line 2: Object missing required field `output_tokens`"),
        ({**_LINE, "prompt_tokens": -1}, "line 2: Expected `int` >= 0"),
        ({**_LINE, "at": "yesterday"}, "line 2: `at` 'yesterday' is neither seconds nor a time"),
        ({**_LINE, "at": 0.2}, "line 2: `at` goes back by 0.3 s"),
        ({**_LINE, "class": "urgent"}, "line 2: Invalid enum value 'urgent'"),
    ],
)
def test_bad_line_is_named(plan: Plan, tmp_path: Path, line: object, reason: str) -> None:
    """What is wrong with a file is said in one line, with the number of the line that must be mended."""
    said = plan("--traffic", _write(tmp_path, _LINE, line))

    assert said.code == 2
    assert reason in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--traffic", "missing.jsonl"], "can't read missing.jsonl: No such file"),
        (["--plot", "plan.png"], "pictures are written as SVG only: name a file such as plan.svg"),
        (["--mode", "sliding", "--all-modes"], "give one of them"),
        (["--profile", "story", "--traffic", "x"], "give one of them"),
        (["--stops-refunding-at", "60"], "goes with --refund"),
        (["--foreign", "1.5"], "share between 0 and 1"),
    ],
)
def test_wrong_options_are_explained(plan: Plan, words: list[str], reason: str) -> None:
    """Options that can't be meant end in one line that says what to do, and in exit code 2."""
    said = plan(*words)

    assert said.code == 2
    assert reason in said.err
    assert len(said.err.splitlines()) == 1


def test_empty_file_is_an_error(plan: Plan, tmp_path: Path) -> None:
    """A file without a request proves nothing, and isn't called fine."""
    said = plan("--traffic", _write(tmp_path, ""))

    assert said.code == 2
    assert "no request in it" in said.err


def test_picture_shows_the_run(plan: Plan, tmp_path: Path) -> None:
    """The picture is valid SVG with calls, refusals large enough to be seen, level and limit, and says how many."""
    config = "[[pools.main.deployments]]\nrpm = 500\ntpm = 30_000\nenforcement = 'continuous'\n"

    said = plan("--mode", "bucket/6", "--profile", "bursts", "--minutes", "3", "--plot", "run.svg", config=config)

    picture = ElementTree.parse(tmp_path / "run.svg").getroot()  # of our own making
    styles = [element.get("class") for element in picture.iter() if element.get("class")]
    level = next(element for element in picture.iter(f"{_SVG}polyline"))
    assert said.code == 1
    assert picture.tag == f"{_SVG}svg"
    assert {"admitted", "rejected", "limit", "level"} <= set(styles)
    refused = [element for element in picture.iter(f"{_SVG}rect") if element.get("class") == "rejected"]
    assert len(refused) > 1  # the first is the legend's
    assert all(float(element.get("height") or 0) >= 3 for element in refused)
    assert len((level.get("points") or "").split()) > 150
    assert any("calls admitted" in (text.text or "") for text in picture.iter(f"{_SVG}text"))
