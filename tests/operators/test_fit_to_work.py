"""Whether a Redis would let a worker work, found out without working: rights by command and key, and kinds of keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import pytest
from redis import Redis

from pipeline.store.finding import Finding
from pipeline.store.health import unfit
from tests.support import Server, on_every_server
from tokenweir.connection import Connection, connect
from tokenweir.keys import Keys

pytestmark = pytest.mark.anyio
_USER = "tokenweir-test-fit"
Asked = Callable[..., Awaitable[list[Finding]]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_every_server(metafunc)


@pytest.fixture
def admin(redis_server: Server) -> Iterator[Redis]:
    """Who may change rights; the test's user is gone in the end."""
    with Redis.from_url(redis_server.url) as client:
        yield client
        client.acl_deluser(_USER)


@pytest.fixture
async def asked(admin: Redis, redis_server: Server, keys: Keys) -> AsyncIterator[Asked]:
    """Asks what keeps a user with these rights from a worker's work."""
    async with AsyncExitStack() as stack:

        async def ask(*rules: str) -> list[Finding]:
            admin.execute_command("ACL", "SETUSER", _USER, "reset", "on", ">pw", *rules)  # type: ignore[no-untyped-call]
            connection = Connection(connect(redis_server.tcp_url.replace("//", f"//{_USER}:pw@")), keys)
            stack.push_async_callback(connection.aclose)
            return await unfit(connection, "worker")

        yield ask


async def test_who_may_do_all_is_fit(asked: Asked) -> None:
    """With all rights, and with all keys of the prefix, nothing is found."""
    assert await asked("~*", "+@all") == []
    assert await asked("~tokenweir:*", "+@all") == []


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        (("~*", "+@all", "-eval", "-evalsha"), "scripts may not be run"),
        (("~*", "+@all", "-xautoclaim"), "XAUTOCLAIM {root}ingest"),
        (("~*", "+@all", "-zrangebyscore"), "ZRANGEBYSCORE {root}backlog:interactive"),
        (("~*", "+@all", "-info"), "INFO"),
        (("~*", "+@all", "-client|unblock"), "CLIENT UNBLOCK"),
        (("%R~*", "+@all"), "XADD {root}ingest"),
        (("~{root}[^r]*", "+@all"), "XADD {root}responses"),
    ],
    ids=["scripts", "a command", "one of a script", "one without a key", "a subcommand", "writing", "responses"],
)
async def test_c62_what_is_missing_is_named(asked: Asked, keys: Keys, rules: tuple[str, ...], named: str) -> None:
    """The one finding says command and key, and where all rights are listed."""
    (finding,) = await asked(*(rule.replace("{root}", keys.root) for rule in rules))

    assert finding.mark == "FAIL"
    assert named.replace("{root}", keys.root) in finding.text
    assert "deploy/redis/users.acl" in finding.cure


async def test_c62_rights_to_look_are_not_needed(asked: Asked) -> None:
    """Without XINFO and TYPE less is shown: that is a warning."""
    (finding,) = await asked("~*", "+@all", "-xinfo", "-type")

    assert finding.mark == "warn"
    assert "XINFO CONSUMERS" in finding.text


@pytest.mark.parametrize("name", ["ingest", "responses", "limits"])
@pytest.mark.leaves_keys("a key that isn't ours")
async def test_c62_a_key_of_another_kind_is_named(asked: Asked, admin: Redis, keys: Keys, name: str) -> None:
    """A string in the place of a stream or hash is found, with what to do with it."""
    admin.set(keys.key(name), "mine")

    (finding,) = await asked("~*", "+@all")

    assert finding.mark == "FAIL"
    assert f"{keys.key(name)} is a string" in finding.text
    assert f"RENAME '{keys.key(name)}'" in finding.cure
