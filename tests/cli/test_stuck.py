"""`stuck` and `replay`: entries whose owner is gone, seen and put back to work."""

from __future__ import annotations

import json

import msgspec
import pytest

from pipeline.message import Request
from pipeline.store.views import Views
from tests.cli.conftest import Cli, Hands

pytestmark = [pytest.mark.anyio, pytest.mark.leaves_keys("the requests aren't finished")]

_REQUEST = Request(id='odd"id', body=msgspec.Raw(b'{"messages":[]}'), attempt=2)


async def test_stuck_shows_what_is_in_hand(cli: Cli, hands: Hands) -> None:
    """Each entry in hand is a line: stage, stream, request, owner, idle time and deliveries."""
    cli("submit", "x", "--id", "s-1")
    await hands.take("ingest")
    await hands.put("gate:batch", _REQUEST)
    await hands.take("gate:batch")

    ended = cli("stuck", "--min-idle", "0", "--json")

    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == 0
    assert [(each["stage"], each["stream"], each["request"]) for each in found] == [
        ("classify", "ingest", "s-1"),
        ("gate", "gate:batch", 'odd"id'),
    ]
    assert {each["owner"] for each in found} == {hands.store.consumer}
    assert [each["deliveries"] for each in found] == [1, 1]
    assert "odd" in cli("stuck", "--min-idle", "0", "--stage", "gate").stdout


async def test_healthy_work_is_not_stuck(cli: Cli, hands: Hands) -> None:
    """What shows a sign of life within the lease is neither listed nor replayed, only counted."""
    cli("submit", "x", "--id", "s-1")
    await hands.take("ingest")

    listed, replayed = cli("stuck"), cli("replay", "--id", "s-1")

    assert (listed.returncode, listed.stdout) == (0, "")
    assert "1 in hand" in listed.stderr
    assert (replayed.returncode, replayed.stdout) == (1, "replayed 0 entries\n")


async def test_a_dry_run_changes_nothing(cli: Cli, hands: Hands) -> None:
    """A dry run says what would be replayed, and leaves it where it is."""
    cli("submit", "x")
    await hands.take("ingest")

    ended = cli("replay", "--all", "--min-idle", "0", "--dry-run")

    assert "would replay 1 entry" in ended.stdout
    assert hands.store.consumer in cli("stuck", "--min-idle", "0").stdout


async def test_a_replayed_entry_goes_to_the_next_worker(cli: Cli, hands: Hands) -> None:
    """A worker takes a replayed entry at its next look, with its id, its attempt and its deliveries as they were."""
    await hands.put("premium", _REQUEST)
    (entry,) = await hands.take("premium")

    ended = cli("replay", "--id", _REQUEST.id, "--min-idle", "0")
    found = await hands.store.streams.reclaim("premium", lease_ms=30_000, cursor="0-0", count=10)

    assert ended.stdout == "replayed 1 entry\n"
    assert found.entries == [entry]


async def test_every_selection_must_hold(cli: Cli, hands: Hands) -> None:
    """Only entries that are of the named stage, entry and owner are replayed."""
    for name in ("s-1", "s-2"):
        cli("submit", "x", "--id", name)
    first, second = await hands.take("ingest")

    for words in (["--owner", "somebody"], ["--stage", "gate"], ["--id", "s-1", "--entry", second.id]):
        assert "replayed 0 entries" in cli("replay", "--min-idle", "0", *words).stdout
    ended = cli("replay", "--min-idle", "0", "--entry", first.id, "--owner", hands.store.consumer)

    left = [json.loads(line) for line in cli("stuck", "--min-idle", "0", "--json").stdout.splitlines()]
    assert ended.stdout == "replayed 1 entry\n"
    assert {each["request"]: each["owner"] for each in left} == {"s-1": "operator", "s-2": hands.store.consumer}


async def test_many_entries_come_in_pages(cli: Cli, hands: Hands) -> None:
    """However many are stuck, each is listed and replayed once."""
    cli("submit", "-f", "-", given='{"prompt": "x"}\n' * 1203)
    entries = await hands.take("ingest:batch", count=2000)

    listed = cli("stuck", "--min-idle", "0", "--json").stdout.splitlines()
    ended = cli("replay", "--all", "--min-idle", "0")

    assert [json.loads(line)["entry"] for line in listed] == [entry.id for entry in entries]
    assert ended.stdout == "replayed 1,203 entries\n"


async def test_an_owner_that_came_back_keeps_its_entry(cli: Cli, hands: Hands) -> None:
    """An entry that another worker took over between looking and replaying stays with that worker."""
    cli("submit", "x")
    (entry,) = await hands.take("ingest")
    views = Views(hands.store.control)
    seen = await views.pending(["ingest"], min_idle_s=0)
    words = ("XCLAIM", hands.store.keys.key("ingest"), "classify", "another", 0, entry.id)
    await hands.store.control.command(*words)

    assert await views.release(seen, idle_s=31) == []


async def test_owner_and_deliveries_choose_what_is_listed(cli: Cli, hands: Hands) -> None:
    """`stuck` narrows by the same options as `replay`."""
    for name in ("s-1", "s-2"):
        cli("submit", "x", "--id", name)
    first, _ = await hands.take("ingest")
    words = ("XCLAIM", hands.store.keys.key("ingest"), "classify", "another", 0, first.id, "RETRYCOUNT", 3)
    await hands.store.control.command(*words)

    def listed(*words: str) -> list[str]:
        return [
            json.loads(line)["request"] for line in cli("stuck", "--idle", "0", "--json", *words).stdout.splitlines()
        ]

    assert listed("--owner", hands.store.consumer) == ["s-2"]
    assert listed("--deliveries", "2") == listed("--entry", first.id) == ["s-1"]
    assert listed("--id", "s-2") == ["s-2"]


async def test_replay_speaks_to_machines(cli: Cli, hands: Hands) -> None:
    """`replay --json` says how many were replayed, and which."""
    cli("submit", "x", "--id", "s-1")
    await hands.take("ingest")

    dry = json.loads(cli("replay", "--id", "s-1", "--idle", "0", "--dry-run", "--json").stdout)
    done = json.loads(cli("replay", "--id", "s-1", "--idle", "0", "--json").stdout)

    assert (dry["dry_run"], dry["replayed"], done["dry_run"], done["replayed"]) == (True, 1, False, 1)
    assert [entry["request"] for entry in done["entries"]] == ["s-1"]
