"""A real server for the session, a pool of its own for each test, and no key left behind.

Tests of scripts, client and limiter meet every kind of server, all others the embedded Valkey. TOKENWEIR_TEST_SERVER
names one kind for all of them: `valkey`, `redis` (the one on PATH) or `redis8`.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from fnmatch import fnmatchcase

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support import Server, chosen_kinds, running_server, server_binary
from tokenweir.connection import Connection, connect
from tokenweir.keys import PERMANENT, Keys

pytest_plugins = ["tests.turns"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "refused: this test does what its user may not")
    config.addinivalue_line("markers", "alone: this test measures the machine, so that no other may run beside it")
    config.addinivalue_line("markers", "leaves_keys(reason): this test may leave keys without expiry behind")
    config.addinivalue_line("markers", "one_server(reason): this test needn't meet every kind of server")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One real server for the whole session; of each kind, where tests meet every kind."""
    kind = getattr(request, "param", chosen_kinds()[0])
    if not server_binary(kind):
        pytest.skip(f"no {kind} server on this machine")
    with running_server(kind) as server:
        yield server


@pytest.fixture
def keys(redis_server: Server, request: pytest.FixtureRequest) -> Iterator[Keys]:
    """A pool nobody else uses. A key without expiry that isn't meant to live for ever fails the test."""
    pool = Keys(f"t{secrets.token_hex(6)}")
    yield pool
    with Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 0)) as client:
        found = [key.decode() for key in client.scan_iter(f"{pool.root}*", count=1000)]
        left = [key for key in found if not _permanent(key.removeprefix(pool.root)) and client.ttl(key) == -1]
        said = [f"{key.removeprefix(pool.root)} ({client.type(key).decode()})" for key in sorted(left)]
        if found:
            client.delete(*found)
    if said and not request.node.get_closest_marker("leaves_keys"):
        pytest.fail(f"keys without expiry left behind: {', '.join(said)}")


def _permanent(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in PERMANENT)


@pytest.fixture
def redis_url(redis_server: Server, keys: Keys) -> str:
    """The session's server, for whoever makes connections of their own to the test's pool (`keys`)."""
    return redis_server.url


@pytest.fixture
async def connection(redis_url: str, keys: Keys) -> AsyncIterator[Connection]:
    """A connection to the test's own pool."""
    opened = Connection(connect(redis_url), keys)
    yield opened
    await opened.aclose()
