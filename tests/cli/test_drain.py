"""`drain`: nothing comes in any more, what is there is finished, and operators see it."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli, Hands
from tests.support import eventually
from tokenweir import Client, PoolClosed

pytestmark = [pytest.mark.anyio, pytest.mark.leaves_keys("some requests aren't finished")]


async def test_an_empty_pool_is_drained_at_once(cli: Cli, hands: Hands) -> None:
    """Where nothing waits `drain` ends with 0 at once, again harmlessly, and `--open` takes requests in again."""
    first, second = cli("drain"), cli("drain", "--json")

    assert first.returncode == second.returncode == 0
    assert f"pool {hands.store.keys.pool} is drained and empty" in first.stdout
    assert "was drained already" in second.stderr
    assert json.loads(second.stdout)["left"] == 0

    opened, again = cli("drain", "--open"), cli("drain", "--open")

    assert "takes requests in again" in opened.stdout
    assert "was open" in again.stdout
    assert cli("submit", "x").returncode == 0


async def test_a_drained_pool_takes_nothing_in(cli: Cli, hands: Hands) -> None:
    """A submit is refused with a time to come back and the cure; an id that was taken in before is still known."""
    keys = hands.store.keys
    cli("submit", "x", "--id", "before")
    await hands.finish("ingest")
    cli("drain")

    refused, known = cli("submit", "x", "--id", "after"), cli("submit", "x", "--id", "before")

    assert refused.returncode == 1
    assert "is drained" in refused.stderr
    assert "tokenweir drain --open" in refused.stderr
    assert (known.returncode, known.stdout) == (0, "before\n")
    async with Client(cli.redis_url, pool=keys.pool) as client:
        with pytest.raises(PoolClosed) as met:
            await client.submit("x")
    assert met.value.retry_after_s == 60
    assert await hands.fields("ingest") == []


async def test_status_and_check_show_a_drained_pool(cli: Cli) -> None:
    """Whoever looks at a drained pool sees since when, by whom, and how to open it."""
    cli("drain")

    shown, checked = cli("status").stdout, cli("check", "--offline").stdout
    seen = json.loads(cli("status", "--json").stdout)

    assert "DRAINED by " in shown
    assert "tokenweir drain --open" in shown
    (line,) = [line for line in checked.splitlines() if " drained: " in line]
    assert line.startswith("warn")
    assert line.endswith("-> tokenweir drain --open")
    assert "@" in seen["closed"]["by"]


async def test_what_was_accepted_is_waited_for(cli: Cli, hands: Hands) -> None:
    """`drain` ends when the last accepted request has its result, and says what a plain XADD brought in meanwhile."""
    for name in ("one", "two"):
        cli("submit", "x", "--id", name)
    process = cli.start("drain", "--json")

    async def closed() -> bool:
        return bool(await hands.store.control.command("EXISTS", hands.store.keys.key("closed")))

    await eventually(closed, 20)
    assert process.stderr is not None
    assert "2 requests to finish" in process.stderr.readline()
    await hands.store.control.command("XADD", hands.store.keys.key("ingest"), "*", "prompt", "x", "id", "three")
    await hands.finish("ingest")
    out, err = process.communicate(timeout=20)

    report = json.loads(out)
    assert process.returncode == 0, err
    assert {name: report[name] for name in ("drained", "results", "dead", "came_in", "left")} == {
        "drained": True,
        "results": 3,
        "dead": 0,
        "came_in": 1,
        "left": 0,
    }


async def test_a_drain_that_takes_too_long_says_what_is_left(cli: Cli, hands: Hands) -> None:
    """With `--timeout` it ends with 1, names what waits where, that no worker runs, and leaves the pool drained."""
    cli("submit", "x")
    await hands.take("ingest")

    ended = cli("drain", "--timeout", "0.5")

    assert ended.returncode == 1
    assert "1 ingest" in ended.stdout
    assert "no worker is running" in ended.stderr
    assert cli("submit", "y").returncode == 1


async def test_a_pool_that_somebody_opens_is_no_longer_waited_for(cli: Cli, hands: Hands) -> None:
    """When the pool is opened meanwhile, `drain` says so and ends with 1."""
    cli("submit", "x")
    process = cli.start("drain")
    assert process.stderr is not None
    process.stderr.readline()

    cli("drain", "--open")
    out, _ = process.communicate(timeout=20)

    assert process.returncode == 1
    assert "was opened meanwhile" in out


async def test_a_file_waits_until_the_pool_is_opened(cli: Cli, hands: Hands) -> None:
    """Submitting a file to a drained pool says so once, and goes on when the pool is opened."""
    cli("drain")
    process = cli.start("submit", "-f", "-")
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write('{"prompt": "x", "id": "late"}\n')
    process.stdin.close()
    assert "is drained" in process.stderr.readline()

    cli("drain", "--open")
    process.stdin = None  # `communicate` would close it again
    out, err = process.communicate(timeout=20)

    assert (process.returncode, out) == (0, "late\n")
    assert "is drained" not in err
