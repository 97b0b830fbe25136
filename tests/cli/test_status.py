"""`status` and `limits show`: what operators look at first."""

from __future__ import annotations

import json

import pytest

from pipeline.store import Store
from tests.cli.conftest import Cli, Hands
from tokenweir.keys import GROUPS

pytestmark = [pytest.mark.anyio, pytest.mark.leaves_keys("the requests aren't finished")]


async def test_the_pool_at_a_glance(cli: Cli, hands: Hands) -> None:
    """The overview has a line for every stream, the backlog, the workers and every limit."""
    cli("submit", "x")
    await hands.store.gate.seed()
    await hands.store.gate.beat(premium_slots=16, edge_slots=0, ttl_ms=60_000)

    shown = cli("status")
    plain = json.loads(cli("status", "--json").stdout)

    assert shown.returncode == 0
    assert all(f"\n{stream} " in shown.stdout for stream in GROUPS)
    assert "16 premium and no edge" in shown.stdout
    assert {queue["stream"]: queue["waiting"] for queue in plain["queues"]}["ingest"] == 1
    assert [(level["limit"], level["allowed"]) for level in plain["budgets"]] == [("rpm", 500), ("tpm", 30_000)]


def test_an_empty_pool_says_what_to_do(cli: Cli) -> None:
    """Where nothing runs yet, the overview names the command that starts a worker."""
    assert "tokenweir run" in cli("status").stdout


async def test_a_request_is_followed_to_its_end(cli: Cli, hands: Hands) -> None:
    """A request's status says where it is, and after the end how it went."""
    cli("submit", "x", "--id", "r-1")
    before = cli("status", "r-1")
    await hands.finish("ingest")

    after, plain = cli("status", "r-1"), json.loads(cli("status", "r-1", "--json").stdout)

    assert "r-1  submitted in classify" in before.stdout
    assert "ok from gpt-4o" in after.stdout
    assert plain["result"]["content"] == "answer 0"


def test_an_unknown_request_ends_with_1(cli: Cli) -> None:
    """Asking for a request that isn't known ends with 1 and says how long results are kept."""
    ended = cli("status", "nobody")

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "60 min" in ended.stderr


async def test_limits_are_shown_as_they_stand(cli: Cli, hands: Hands) -> None:
    """The limits in Redis are shown resolved, with their version; before a worker ran, there are none."""
    before = cli("limits", "show")
    await hands.store.gate.seed()

    shown, plain = cli("limits", "show"), json.loads(cli("limits", "show", "--json").stdout)

    assert "no limits in Redis yet" in before.stderr
    assert "version 1" in shown.stdout
    assert "30,000" in shown.stdout
    assert plain["version"] == 1
    assert [limit["name"] for limit in plain["deployments"]["primary"]["limits"]] == ["rpm", "tpm"]


async def test_limits_that_are_not_ours_are_survived(cli: Cli, hands: Hands) -> None:
    """Something foreign in the limits' place is named, and no traceback is shown."""
    store: Store = hands.store
    await store.control.command("HSET", store.keys.key("limits"), "primary", "[]")

    ended = cli("limits", "show")

    assert ended.returncode == 3
    assert "isn't ours" in ended.stderr
