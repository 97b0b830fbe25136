"""`results`: every result once in a file, however often the command is killed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Hands
from tests.support import eventually

pytestmark = pytest.mark.anyio


async def _answer(cli: Cli, hands: Hands, count: int) -> list[str]:
    cli("submit", "-f", "-", given='{"prompt": "x"}\n' * count)
    return await hands.finish("ingest:batch")


async def test_results_are_json_lines(cli: Cli, hands: Hands) -> None:
    """Each result is one JSON object on stdout, with its entry, oldest first."""
    ids = await _answer(cli, hands, 3)

    ended = cli("results", "--no-follow")

    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [line["id"] for line in lines] == ids
    assert [line["content"] for line in lines] == ["answer 0", "answer 1", "answer 2"]
    assert all(line["entry"] for line in lines)


async def test_a_file_goes_on_behind_its_last_whole_line(cli: Cli, hands: Hands) -> None:
    """A line torn by kill -9 is cut off and its result written again: every result once, in order."""
    ids = await _answer(cli, hands, 5)
    out = Path(cli.folder, "out.jsonl")
    cli("results", "-o", "out.jsonl", "--no-follow", "--count", "3")
    out.write_bytes(out.read_bytes()[:-20])

    ended = cli("results", "-o", "out.jsonl", "--no-follow")

    assert ended.returncode == 0
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == ids


async def test_a_killed_follower_loses_nothing(cli: Cli, hands: Hands) -> None:
    """After kill -9 in the middle of following, the next run has the rest, and nothing twice."""
    first = await _answer(cli, hands, 40)
    out = Path(cli.folder, "out.jsonl")
    process = cli.start("results", "-o", "out.jsonl")
    await eventually(lambda: out.exists() and out.stat().st_size > 0, 20)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    cli("submit", "-f", "-", given='{"prompt": "y"}\n' * 10)
    second = await hands.finish("ingest:batch")

    cli("results", "-o", "out.jsonl", "--no-follow")

    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [*first, *second]


async def test_following_waits_for_what_comes(cli: Cli, hands: Hands) -> None:
    """With --count the command waits until so many results have come, and then ends."""
    process = cli.start("results", "--count", "2")
    ids = await _answer(cli, hands, 2)

    out, _ = process.communicate(timeout=20)

    assert process.returncode == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == ids


async def test_a_group_shares_results(cli: Cli, hands: Hands) -> None:
    """What one reader of a group has written is acknowledged, and comes to no other."""
    ids = await _answer(cli, hands, 5)

    first = cli("results", "--group", "billing", "--no-follow", "--count", "2")
    second = cli("results", "--group", "billing", "--no-follow")

    lines = (first.stdout + second.stdout).splitlines()
    about = await hands.store.control.command("XPENDING", hands.store.keys.key("responses"), "billing")
    assert [json.loads(line)["id"] for line in lines] == ids
    assert about["pending"] == 0


async def test_other_peoples_files_are_left_alone(cli: Cli, hands: Hands) -> None:
    """A file that holds something else is refused and keeps every byte."""
    await _answer(cli, hands, 1)
    notes = Path(cli.folder, "notes.txt")
    for text in ("my notes", "my notes\n", '{"a": 1}\n', '{"entry": "1-1"}\nmy notes'):
        notes.write_text(text)

        ended = cli("results", "-o", "notes.txt", "--no-follow")

        assert (ended.returncode, notes.read_text()) == (2, text)


async def test_a_file_has_one_writer(cli: Cli, hands: Hands) -> None:
    """A second process that would write the same file is refused."""
    await _answer(cli, hands, 1)
    out = Path(cli.folder, "out.jsonl")
    process = cli.start("results", "-o", "out.jsonl")
    await eventually(lambda: out.exists() and out.stat().st_size > 0, 20)

    ended = cli("results", "-o", "out.jsonl", "--no-follow")

    process.kill()
    process.communicate()
    assert ended.returncode == 2
    assert "another process" in ended.stderr


async def test_trimmed_results_are_reported(cli: Cli, hands: Hands) -> None:
    """When results were trimmed before the file got them, the command says so."""
    await _answer(cli, hands, 3)
    cli("results", "-o", "out.jsonl", "--no-follow", "--count", "1")
    await hands.store.control.command("XTRIM", hands.store.keys.key("responses"), "MAXLEN", 1)

    ended = cli("results", "-o", "out.jsonl", "--no-follow")

    assert "trimmed" in ended.stderr


async def test_foreign_entries_are_passed_over(cli: Cli, hands: Hands) -> None:
    """An entry on `responses` that isn't a result is named and left out; its neighbours come."""
    await hands.store.control.command("XADD", hands.store.keys.key("responses"), "*", "no", "result")
    ids = await _answer(cli, hands, 1)

    ended = cli("results", "--no-follow")

    assert [json.loads(line)["id"] for line in ended.stdout.splitlines()] == ids
    assert "isn't a result" in ended.stderr
