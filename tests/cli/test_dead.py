"""`dead`: letters listed, shown, dropped, and given a numbered second life."""

from __future__ import annotations

import json

import msgspec
import pytest

from pipeline.message import Request, decode
from pipeline.store.letters import Letters
from tests.cli.conftest import Cli, Hands

pytestmark = [pytest.mark.anyio, pytest.mark.leaves_keys("replayed requests aren't finished")]


async def _inner(hands: Hands) -> None:
    """A letter from the gate's lane."""
    request = Request(id="d-1", body=msgspec.Raw(b'{"messages":[]}'), priority="standard", attempt=3)
    await hands.put("gate:standard", request)
    await hands.bury("gate:standard", "d-1")


def _listed(cli: Cli) -> list[dict[str, str]]:
    return [json.loads(line) for line in cli("dead", "list", "--json").stdout.splitlines()]


async def test_letters_are_listed_and_shown_whole(cli: Cli, hands: Hands) -> None:
    """A letter says where it stood, why it is dead, and every field of the original entry."""
    cli("submit", "Where is my parcel?", "--id", "d-1", "--tenant", "acme")
    await hands.bury("ingest", "d-1")

    (letter,) = _listed(cli)
    shown = cli("dead", "show", letter["letter"]).stdout

    assert (letter["id"], letter["stream"], letter["reason"]) == ("d-1", "ingest", "deliveries")
    assert letter["at"] == "2025-07-24T12:26:40+00:00"
    assert "Where is my parcel?" in shown
    assert "acme" in shown
    assert "d-1" in cli("dead", "list").stdout


async def test_an_early_letter_goes_in_again_as_it_was(cli: Cli, hands: Hands) -> None:
    """A letter from the way in goes back there with its own fields, its id, and the number of its new life."""
    cli("submit", "x", "--id", "d-1", "--task", "intent")
    (before,) = await hands.fields("ingest")
    await hands.bury("ingest", "d-1")
    (letter,) = _listed(cli)

    ended = cli("dead", "replay", letter["letter"])

    assert ended.returncode == 0
    assert await hands.fields("ingest") == [{**before, b"replay": b"1"}]
    assert await hands.fields("dead") == []


async def test_a_letter_without_an_id_keeps_the_one_it_was_known_by(cli: Cli, hands: Hands) -> None:
    """Where the producer gave no id, the old entry's stays the request's: its producer looks for that one."""
    await hands.store.control.command("XADD", hands.store.keys.key("ingest"), "7-1", "prompt", "x")
    await hands.bury("ingest", "7-1")

    cli("dead", "replay", "--all")

    assert await hands.fields("ingest") == [{b"prompt": b"x", b"id": b"7-1", b"replay": b"1"}]


async def test_a_letter_with_thousands_of_fields_is_whole_and_goes_in_again(cli: Cli, hands: Hands) -> None:
    """Each field is kept, byte for byte, one called `fields` too; what goes in again leaves out what nobody reads."""
    more = {f"f{i}".encode(): bytes([i % 256, 255 - i % 256]) for i in range(5000)} | {b"fields": b"[1]", b"json": b"x"}
    known = {b"prompt": "Grüße".encode(), b"id": b"d-1", b"class": b"batch"}
    flat = [part for item in (known | more).items() for part in item]
    await hands.store.control.command("XADD", hands.store.keys.key("ingest"), "*", *flat)
    await hands.bury("ingest", "d-1")
    (letter,) = [letter async for letter in Letters(hands.store.control).all()]

    assert cli("dead", "replay", letter.letter).returncode == 0

    assert letter.fields == known | more
    assert await hands.fields("ingest") == [{**known, b"replay": b"1"}]


async def test_a_later_letter_goes_back_to_the_gate(cli: Cli, hands: Hands) -> None:
    """A letter from further on begins anew at the gate of its class: next replay, first attempt."""
    await _inner(hands)

    ended = cli("dead", "replay", "--all")

    (fields,) = await hands.fields("gate:standard")
    request = decode(fields[b"request"])
    assert "replayed 1 letter" in ended.stdout
    assert (request.id, request.replay, request.attempt) == ("d-1", 1, 1)
    assert json.loads(cli("status", "d-1", "--json").stdout)["replay"] == 1


async def test_lives_are_numbered(cli: Cli, hands: Hands) -> None:
    """A request that dies again gets the next number, so that each life has one terminal result."""
    await _inner(hands)
    for life in (1, 2, 3):
        cli("dead", "replay", "--all")
        (fields,) = await hands.fields("gate:standard")

        assert decode(fields[b"request"]).replay == life
        await hands.bury("gate:standard", "d-1")


async def test_a_dry_run_changes_nothing(cli: Cli, hands: Hands) -> None:
    """A dry run names the letters and the streams they would go to, and leaves them dead."""
    await _inner(hands)
    (letter,) = _listed(cli)

    replay = cli("dead", "replay", "--all", "--dry-run").stdout
    drop = cli("dead", "drop", letter["letter"], "--dry-run").stdout

    assert "d-1 -> gate:standard as replay 1" in replay
    assert "would drop 1 letter" in drop
    assert _listed(cli) == [letter]


async def test_unreadable_letters_are_kept_and_named(cli: Cli, hands: Hands) -> None:
    """What can't be read can't be replayed: it is named, stays, and others go in."""
    await hands.store.control.command("XADD", hands.store.keys.key("gate:batch"), "*", "request", "\x00not ours")
    await hands.bury("gate:batch", "d-0")
    await _inner(hands)

    ended = cli("dead", "replay", "--all")

    assert "replayed 1 letter" in ended.stdout
    assert "nothing in it can be replayed" in ended.stderr
    assert [letter["id"] for letter in _listed(cli)] == ["d-0"]


async def test_dropped_letters_are_gone(cli: Cli, hands: Hands) -> None:
    """Dropping deletes the named letters; one that isn't there is named, and ends the command with 1."""
    await _inner(hands)
    (letter,) = _listed(cli)

    ended = cli("dead", "drop", letter["letter"], "1-1")

    assert (ended.returncode, ended.stdout) == (1, "dropped 1 letter\n")
    assert "1-1: no such dead letter" in ended.stderr
    assert "no dead letters" in cli("dead", "list").stderr


async def test_two_operators_replay_a_letter_once(hands: Hands) -> None:
    """When two operators replay the same letter, one life begins."""
    await _inner(hands)
    letters = Letters(hands.store.control)
    (letter,) = [letter async for letter in letters.all()]

    first, second = await letters.replay([letter]), await letters.replay([letter])

    assert first == [(letter, 1)]
    assert second == [(letter, 0)]
    assert len(await hands.fields("gate:standard")) == 1


async def test_a_request_that_died_twice_gets_two_lives(cli: Cli, hands: Hands) -> None:
    """Two letters of one request that are replayed together begin lives of different numbers."""
    for _ in range(2):
        await _inner(hands)

    ended = cli("dead", "replay", "--all", "--json")

    report = json.loads(ended.stdout)
    assert [letter["replay"] for letter in report["letters"]] == [1, 2]
    assert [decode(fields[b"request"]).replay for fields in await hands.fields("gate:standard")] == [1, 2]


async def test_letters_are_chosen_by_request_stage_reason_and_age(cli: Cli, hands: Hands) -> None:
    """Every option narrows the choice, for listing, replaying and dropping alike."""
    cli("submit", "x", "--id", "early")
    await hands.bury("ingest", "early")
    await _inner(hands)

    def chosen(*words: str) -> list[str]:
        return [json.loads(line)["id"] for line in cli("dead", "list", "--json", *words).stdout.splitlines()]

    assert chosen("--stage", "classify") == ["early"]
    assert chosen("--id", "d-1") == ["d-1"]
    assert chosen("--reason", "deliveries", "--older", "60") == ["early", "d-1"]
    assert chosen("--reason", "unreadable") == chosen("--older", "1e9") == []
    assert "would replay 1 letter" in cli("dead", "replay", "--stage", "gate", "--dry-run").stdout
    assert json.loads(cli("dead", "drop", "--id", "early", "--json").stdout) == {"dry_run": False, "dropped": 1}
    assert chosen() == ["d-1"]


async def test_letters_are_named_or_chosen(cli: Cli) -> None:
    """Names and options at once are a mistake, and so is dropping without saying what."""
    assert cli("dead", "drop").returncode == 2
    assert cli("dead", "replay", "1-1", "--stage", "gate").returncode == 2
