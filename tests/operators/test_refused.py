"""Redis refuses: a worker that starts says what and how to mend it; one that runs keeps calm and goes on later."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig
from tests.operators.guarded import GuardedStore

_USER = "tokenweir-worker"
_WATCHED_S, _MOST_A_SECOND = 3.0, 20
_REASONS = ("NoPermissionError", "ACL failure", "can't run this command", "AuthenticationError")
# What workers send by themselves, apart from what their scripts do.
_SENT = (
    "evalsha",
    "eval",
    "hello",
    "auth",
    "xreadgroup",
    "xgroup|create",
    "client|id",
    "client|unblock",
    "script|load",
)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """One worker on a server that was started with the files as they are handed out."""
    # The usual lease: with the shorter one of other tests its regular renewal would be most of what is counted.
    with open_rig(store=GuardedStore, lease_s=30.0) as opened:
        opened.run()
        opened.ask("the first one warms up")
        yield opened


@pytest.fixture(autouse=True)
def _as_before(rig: Rig) -> Iterator[None]:
    """A test begins and ends with a worker that is served; everything is finished in the end, by that same one."""
    run = rig.runs[0]
    pids = run.live
    yield
    _store(rig).give_back("worker")
    wait_until(lambda: len(run.events("redis_outage_began")) == len(run.events("redis_outage_ended")), 15)
    rig.assert_clean()
    assert run.live == pids


def _store(rig: Rig) -> GuardedStore:
    assert isinstance(rig.store, GuardedStore)
    return rig.store


def _start(rig: Rig, *words: str) -> subprocess.CompletedProcess[str]:
    """A worker that is expected to end by itself."""
    command = [sys.executable, "-m", "pipeline.cli", "run", "--config", str(rig.config), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_c62_a_worker_that_may_not_work_ends_with_one_line(rig: Rig) -> None:
    """A right that a script needs is missing: the worker ends with 2 before it has begun, and names command and key."""
    rig.command("ACL", "SETUSER", "narrow", "reset", "on", ">pw", "~*", "+@all", "-zrangebyscore")

    ended = _start(rig, "--redis", f"redis://narrow:pw@127.0.0.1:{rig.store.port}/0")

    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "user narrow may not ZRANGEBYSCORE tokenweir:{main}:reservations" in line
    assert "deploy/redis/users.acl" in line


def test_c62_a_wrong_password_is_said_at_the_start(rig: Rig) -> None:
    """A wrong password ends two workers under a supervisor with 2, instead of starting them for ever."""
    url = _store(rig).url.replace("worker-pw", "guess")

    ended = _start(rig, "--redis", url, "--workers", "2")

    assert ended.returncode == 2
    assert "invalid username-password pair" in ended.stderr
    assert "guess" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_c62_without_xinfo_all_work_is_done(rig: Rig) -> None:
    """Who may not ask for consumers serves all the same, and says once what is missing."""
    rig.command("ACL", "SETUSER", "blind", "reset", "on", ">pw", "~*", "+@all", "-xinfo", "-type")
    blind = rig.run(1, "--redis", f"redis://blind:pw@127.0.0.1:{rig.store.port}/0")

    results = rig.wait_for(rig.add_many(40))

    (said,) = blind.events("rights_missing")
    assert "XINFO CONSUMERS" in said["reason"]
    assert {result.status for result in results} == {"ok"}
    wait_until(lambda: rig.metric("tokenweir_redis_up") >= 2, why="one of the two shows no metrics")
    blind.end()
    assert blind.events("redis_outage_began") == []


_REVOKED = {
    "all commands": ("SETUSER", _USER, "-@all"),
    "scripts": ("SETUSER", _USER, "-eval", "-evalsha"),
    "reading": ("SETUSER", _USER, "-xreadgroup"),
    "the user": ("DELUSER", _USER),
}


@pytest.mark.parametrize("what", _REVOKED)
def test_c62_rights_that_are_revoked_while_it_runs(rig: Rig, what: str) -> None:
    """No hot loop: few commands and log lines a second; the reason is named; work goes on when rights are back."""
    run = rig.runs[0]
    said = len(run.text.splitlines())
    rig.command("ACL", *_REVOKED[what])
    ids = rig.add_many(40)
    wait_until(lambda: '"redis_outage_began"' in "\n".join(run.text.splitlines()[said:]), 10)

    _assert_calm(rig)

    _store(rig).give_back("worker")
    assert {result.status for result in rig.wait_for(ids)} == {"ok"}
    new = run.text.splitlines()[said:]
    told = [line for line in new if '"redis_outage_began"' in line or '"redis_refuses"' in line]
    assert any(word in line for line in told for word in _REASONS), told
    assert not [line for line in new if "Traceback" in line]


def test_c62_a_key_that_becomes_another_kind_while_it_runs(rig: Rig) -> None:
    """A string takes the stream's place under a live worker: no hot loop, and work goes on when it is gone."""
    run, ingest = rig.runs[0], rig.keys.key("ingest")
    said = len(run.text.splitlines())
    rig.redis.set(ingest, "mine")
    wait_until(lambda: '"redis_outage_began"' in "\n".join(run.text.splitlines()[said:]), 10)

    _assert_calm(rig)

    rig.redis.delete(ingest)
    assert {result.status for result in rig.wait_for(rig.add_many(20))} == {"ok"}


def _assert_calm(rig: Rig) -> None:
    """Few commands and log lines a second, for as long as is watched."""
    run = rig.runs[0]
    before, lines, began = _calls(rig), len(run.text.splitlines()), time.monotonic()
    wait_until(lambda: time.monotonic() - began >= _WATCHED_S, _WATCHED_S + 1)
    took_s = time.monotonic() - began
    calls, lines = _calls(rig) - before, len(run.text.splitlines()) - lines

    sent = Counter({name: count for name, count in calls.items() if name in _SENT})
    assert sent.total() / took_s <= _MOST_A_SECOND, (took_s, calls)
    assert lines / took_s <= _MOST_A_SECOND


def _calls(rig: Rig) -> Counter[str]:
    """Commands so far, refused ones included; what scripts do is counted as well."""
    found: Any = rig.redis.info("commandstats")
    return Counter(
        {name.removeprefix("cmdstat_"): about["calls"] + about["rejected_calls"] for name, about in found.items()}
    )
