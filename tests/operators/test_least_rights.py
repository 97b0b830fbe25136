"""With the files of deploy/redis everything works, each program as its own user, and nothing else is possible."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ResponseError
from redis.retry import Retry

from pipeline.cli import main
from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig
from tests.operators.guarded import GuardedStore
from tests.support import server_kinds
from tokenweir import Client, Limiter
from tokenweir.wire import Result


@pytest.fixture(scope="module", params=server_kinds())
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A worker with a worker's rights on a server of each kind, started with the files as they are handed out."""
    with open_rig(kind=request.param, store=GuardedStore) as opened:
        opened.run()
        opened.ask("the first one warms up")
        yield opened


@pytest.fixture(autouse=True)
def _everything_was_allowed(rig: Rig, request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test did as one of our users, nothing of it was refused; and nothing is left behind."""
    _store(rig).refusals()
    yield
    if not request.node.get_closest_marker("refused"):
        assert _store(rig).refusals() == []
    rig.assert_clean()


def _store(rig: Rig) -> GuardedStore:
    assert isinstance(rig.store, GuardedStore)
    return rig.store


class Commands:
    """`tokenweir` in this very process, since starting one for each of many commands takes longer than they do."""

    def __init__(self, rig: Rig, said: pytest.CaptureFixture[str]) -> None:
        self._rig = rig
        self._said = said

    def __call__(self, *words: str, user: str = "operator") -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a command as this user."""
        code = main([*words, "--config", str(self._rig.config), "--redis", _store(self._rig).url_of(user)])
        return code, *self._said.readouterr()


@pytest.fixture
def tokenweir(rig: Rig, capsys: pytest.CaptureFixture[str]) -> Commands:
    """The command line, on the rig's pool."""
    return Commands(rig, capsys)


def test_a_worker_serves_with_a_workers_rights(rig: Rig) -> None:
    """Raw entries of a producer go through all stages, the local model and the backlog; deltas come where asked for."""
    producer = _store(rig).of("submitter")
    ingest = rig.keys.key("ingest")
    ids = []
    for i in range(30):
        fields = {"prompt": f"[{i}] where?", "id": f"raw-{i}", "task": "intent" if i % 2 else "analysis", "stream": "1"}
        producer.xadd(ingest, fields)  # type: ignore[arg-type]  # its stub wants bytes as keys
        ids.append(f"raw-{i}")

    results = rig.wait_for(ids)

    assert {result.status for result in results} == {"ok"}
    events = producer.xrange(rig.keys.reply("raw-0"))
    assert events
    assert producer.hget(rig.keys.status("raw-0"), "state") == b"done"
    producer.close()
    assert rig.runs[0].events("redis_outage_began") == []


def test_the_client_needs_no_more_than_a_producers_rights(rig: Rig) -> None:
    """All that a client does works as the producer user, and all but cancelling as the submitter."""

    async def use(user: str) -> list[Result]:
        found = []
        async with Client(_store(rig).url_of(user), pool=rig.keys.pool) as client:
            ids = await client.submit_many(["one?", "two?"])
            found += [await client.result(each, timeout_s=20) for each in ids]
            async for event in client.stream("three?", timeout_s=20):
                found += [event.result] if event.result else []
            answer = await client.ask("four?", wait_s=20)
            assert isinstance(answer, Result)
            assert (await client.status(answer.id)) is not None
            if user == "producer":
                assert (await client.cancel(answer.id)) is not None
                unwanted = await client.submit("five?", metadata={"ticket": 7}, stream=True)
                assert (await client.cancel(unwanted)) is not None
            async for result in client.results(group="billing", takeover_s=0.001):
                if result.id == answer.id:
                    break
            async for result in client.results():
                found.append(result)
                break
        return [*found, answer]

    results = [*asyncio.run(use("submitter")), *asyncio.run(use("producer"))]

    assert {result.status for result in results} <= {"ok", "cancelled"}


def test_the_limiter_has_a_user_of_its_own(rig: Rig) -> None:
    """Reserving, settling and putting limits in place work as the limiter user."""

    async def use(**more: object) -> None:
        async with Limiter(_store(rig).url_of("limiter"), pool=rig.keys.pool, **more) as limiter:  # type: ignore[arg-type]
            for _ in range(3):
                async with limiter.reserve(tokens=10, wait_s=10) as grant:
                    grant.settle(tokens=5)

    asyncio.run(use())
    asyncio.run(use(limits={"another": {"rpm": 100, "tpm": 10_000, "window_s": 6.0, "max_in_flight": 5}}))

    assert rig.redis.hdel(rig.keys.key("limits"), "another", "another@seed") == 2


def test_operators_commands_need_no_more_than_an_operators_rights(rig: Rig, tokenweir: Commands) -> None:
    """Looking, putting back to work, dead letters, limits, draining: each ends with 0 as the operator user."""
    rig.redis.xadd(rig.keys.key("gate:batch"), {"request": "not ours"})
    wait_until(lambda: rig.redis.xlen(rig.keys.key("dead")), 10)
    commands = (
        ["status"],
        ["stuck", "--min-idle", "0"],
        ["replay", "--all"],
        ["dead", "list"],
        ["dead", "replay", "--all"],
        ["limits", "show"],
        ["limits", "set", "primary", "rpm=5001"],
        ["limits", "resume"],
        ["submit", "[operator] well?", "--id", "op-1", "--wait", "20"],
        ["status", "op-1"],
        ["results", "--no-follow"],
        ["results", "--no-follow", "--group", "ops", "--count", "1"],
        ["drain", "--timeout", "20"],
        ["drain", "--open"],
    )
    for words in commands:
        code, out, err = tokenweir(*words)
        assert code == 0, (words, out, err)
    _, letters, _ = tokenweir("dead", "list", "--json")
    assert tokenweir("dead", "drop", json.loads(letters.splitlines()[0])["letter"])[0] == 0
    assert {result.status for result in rig.wait_for(["op-1"])} == {"ok"}
    rig.redis.xgroup_destroy(rig.keys.key("responses"), "ops")


@pytest.mark.refused
@pytest.mark.parametrize(("user", "mark"), [("worker", "ok"), ("operator", "warn"), ("producer", "warn")])
def test_check_says_whose_rights_a_user_has(tokenweir: Commands, user: str, mark: str) -> None:
    """`check` passes as the worker; as another of the users it says what that one is for, and looks at what it may."""
    _, out, _ = tokenweir("check", "--offline", user=user)

    (line,) = [line for line in out.splitlines() if " rights: " in line]
    assert line.startswith(mark)
    assert f"user tokenweir-{user} may do all that {'an' if user == 'operator' else 'a'} {user} does" in line


_NOBODY = [
    ["FLUSHALL"],
    ["FLUSHDB"],
    ["CONFIG", "GET", "requirepass"],
    ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"],
    ["KEYS", "*"],
    ["SCAN", "0"],
    ["ACL", "LIST"],
    ["ACL", "SETUSER", "tokenweir-producer", "+@all"],
    ["SHUTDOWN", "NOSAVE"],
    ["MONITOR"],
    ["REPLICAOF", "NO", "ONE"],
    ["SCRIPT", "FLUSH"],
    ["FUNCTION", "LIST"],
    ["CLIENT", "LIST"],
    ["SAVE"],
    ["PUBLISH", "a", "b"],
    ["SET", "another:{main}:limits", "x"],
    ["GET", "secret"],
    ["DEL", "tokenweir:{main}:ingest"],
    ["DEL", "tokenweir:{main}:limits"],
    ["XTRIM", "tokenweir:{main}:premium", "MAXLEN", "0"],
    ["XADD", "tokenweir:main:ingest", "*", "a", "b"],
    ["EVAL", "return redis.call('FLUSHALL')", "0"],
    ["EVAL", "return redis.call('DEL', 'tokenweir:{main}:ingest')", "0"],
    ["EVAL", "return redis.call('GET', 'secret')", "0"],
]
_PRODUCER = [
    *(["XADD", f"tokenweir:{{main}}:{lane}", "*", "request", "x"] for lane in ("premium", "edge", "gate:interactive")),
    ["XADD", "tokenweir:{main}:dead", "*", "a", "b"],
    ["SET", "tokenweir:{main}:budget:primary", "x"],
    ["GET", "tokenweir:{main}:budget:primary"],
    ["HSET", "tokenweir:{main}:limits", "primary", "{}"],
    ["HSET", "tokenweir:{main}:slots", "me", "1 1 1"],
    ["HSET", "tokenweir:{main}:backlog:meta", "a", "b"],
    ["HDEL", "tokenweir:{main}:limits", "primary"],
    ["HGET", "tokenweir:{main}:grants", "a"],
    ["SET", "tokenweir:{main}:closed", "x"],
    ["XRANGE", "tokenweir:{main}:ingest", "-", "+"],
    ["XRANGE", "tokenweir:{main}:dead", "-", "+"],
    ["XREADGROUP", "GROUP", "classify", "me", "STREAMS", "tokenweir:{main}:ingest", ">"],
    ["XGROUP", "DESTROY", "tokenweir:{main}:responses", "billing"],
    ["XDEL", "tokenweir:{main}:responses", "1-1"],
    ["EVAL", "return redis.call('XADD', KEYS[1], '*', 'a', 'b')", "1", "tokenweir:{main}:gate:batch"],
    ["EVAL", "return redis.call('HSET', KEYS[1], 'a', 'b')", "1", "tokenweir:{main}:limits"],
    ["EVAL", "return redis.call('SET', KEYS[1], 'b')", "1", "tokenweir:{main}:budget:primary"],
]
_SUBMITTER = [
    *_PRODUCER,
    *(["XADD", f"tokenweir:{{main}}:{stream}", "*", "a", "b"] for stream in ("responses", "deferred", "cancelled")),
    ["HDEL", "tokenweir:{main}:backlog:meta", "a"],
    ["ZREM", "tokenweir:{main}:backlog:batch", "a"],
    ["EVAL", "return redis.call('XADD', KEYS[1], '*', 'a', 'b')", "1", "tokenweir:{main}:responses"],
]
_LIMITER = [
    ["XADD", "tokenweir:{main}:ingest", "*", "prompt", "x"],
    ["XRANGE", "tokenweir:{main}:responses", "-", "+"],
    ["HGETALL", "tokenweir:{main}:status:a"],
]
_OPERATOR = [
    ["XADD", "tokenweir:{main}:premium", "*", "request", "x"],
    ["XDEL", "tokenweir:{main}:ingest", "1-1"],
    ["HSET", "tokenweir:{main}:slots", "me", "1 1 1"],
]


_BEYOND = {"submitter": _SUBMITTER, "producer": _PRODUCER, "limiter": _LIMITER, "operator": _OPERATOR, "worker": []}


@pytest.mark.refused
@pytest.mark.parametrize("user", _BEYOND)
def test_what_nobody_needs_is_refused(rig: Rig, user: str) -> None:
    """Each user is refused whatever its programs don't do, by itself and inside of a script of its own."""
    with _store(rig).of(user) as client:
        answers = {" ".join(words): _refusal(client, words) for words in [*_NOBODY, *_BEYOND[user]]}

    assert [words for words, answer in answers.items() if not _REFUSED.search(answer)] == []


_REFUSED = re.compile(r"NOPERM|no permissions|ACL failure|can't (run|access)", re.IGNORECASE)


def _refusal(client: Redis, words: list[str]) -> str:
    """What Redis says against it; empty if it does it."""
    try:
        client.execute_command(*words)  # type: ignore[no-untyped-call]
    except ResponseError as error:
        return str(error)
    return ""


@pytest.mark.refused
def test_without_a_password_nothing_is_possible(rig: Rig) -> None:
    """The default user is switched off."""
    with (
        Redis(port=rig.store.port, retry=Retry(NoBackoff(), 0)) as client,
        pytest.raises(AuthenticationError),
    ):
        client.ping()
