"""`cancel`: what it says of each request, and which exit code that is."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli, Hands

pytestmark = [pytest.mark.anyio, pytest.mark.leaves_keys("the entries of the requests stay where they are")]


async def test_requests_are_cancelled(cli: Cli) -> None:
    """A waiting request is cancelled, by its id or from a list of them; doing it again is harmless."""
    for name in ("a", "b", "c"):
        cli("submit", "x", "--id", name)

    one, many, again = cli("cancel", "a"), cli("cancel", "-", given="b\n\nc\n"), cli("cancel", "a", "b")

    assert (one.returncode, one.stdout, one.stderr) == (0, "a  cancelled\n", "")
    assert (many.returncode, many.stdout) == (0, "b  cancelled\nc  cancelled\n")
    assert (again.returncode, again.stdout) == (0, "a  cancelled\nb  cancelled\n")
    assert "a  done" in cli("status", "a").stdout


async def test_what_has_ended_otherwise_ends_with_1(cli: Cli, hands: Hands) -> None:
    """A request that has its answer keeps it, and is told apart; the others are cancelled all the same."""
    cli("submit", "x", "--id", "answered")
    await hands.finish("ingest")
    cli("submit", "x", "--id", "waiting")

    ended = cli("cancel", "answered", "waiting")

    assert ended.returncode == 1
    assert ended.stdout.splitlines()[0].startswith("answered  ok from gpt-4o")
    assert ended.stdout.splitlines()[1] == "waiting  cancelled"
    assert "which stands: 1" in ended.stderr


async def test_an_unknown_request_ends_with_1(cli: Cli) -> None:
    """An id that nobody submitted is said to be unknown; as JSON every id has its line."""
    cli("submit", "x", "--id", "known")

    ended = cli("cancel", "known", "nobody", "--json")

    assert ended.returncode == 1
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(line["id"], line["status"]) for line in lines] == [("known", "cancelled"), ("nobody", "unknown")]
    assert "not known" in ended.stderr
