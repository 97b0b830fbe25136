"""Redis comes late, comes back, or has no place left: workers wait without dying, and serve as soon as they can."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis.exceptions import BusyLoadingError, RedisError

from tests.faults.health import statuses
from tests.faults.networks import port_of
from tests.faults.proxy import Proxy
from tests.faults.strain import let_pass, no_hot_loop
from tests.integration.processes import Store, wait_until
from tests.integration.rig import Rig, open_rig

pytestmark = pytest.mark.slow

# From a Redis that answers again to the first result, at most.
FIRST_S, RESTART_S = 2.0, 3.0
# Per key, so that a small dump takes seconds to be loaded.
LOADING_US = 20_000
KEYS = 150
# docs/how-it-works.md: one for each stage, one for cancellations, and up to four for everything else.
MOST_CONNECTIONS = 10


def _slow_to_load(folder: Path, kind: str) -> Store:
    """A Redis that takes some seconds to load a small dump, and answers LOADING meanwhile."""
    options = ("--key-load-delay", str(LOADING_US), "--loading-process-events-interval-bytes", "1024")
    return Store(folder, kind, options)


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A warm deployment of two workers."""
    with open_rig() as opened:
        opened.run(2)
        wait_until(lambda: opened.redis.exists(opened.keys.key("edge:alive")), 10)
        opened.wait_for(opened.add_many(20))
        yield opened
        opened.assert_clean()
        assert "Traceback" not in opened.runs[0].text


def test_c59_workers_wait_for_a_redis_that_comes_late() -> None:
    """Redis is absent, then LOADING; edge and provider are absent: no worker ends, and then the first is served in 2 s.

    Shortened from 30 s and 20 s: the longest wait between two tries is a second, which it reaches after two.
    """
    with open_rig(store=_slow_to_load, networks=True) as rig, Proxy(port_of(rig.sandbox.edge)) as edge:
        for number in range(KEYS):
            rig.redis.set(f"loaded:{number}", "x" * 2000)
        rig.command("BGREWRITEAOF")
        wait_until(lambda: not rig.redis.info("persistence")["aof_rewrite_in_progress"], 10)
        rig.store.stop()
        rig.networks.provider.cut()
        edge.cut()
        rig = rig.configure("main", edge={"base_url": f"http://127.0.0.1:{edge.port}"})

        run = rig.run(2)
        with no_hot_loop(rig, of=("lines", "connections")):
            let_pass(4)
            assert (statuses(run, "healthz"), statuses(run, "readyz")) == ([200, 200], [503, 503])
            rig.store.launch()
            wait_until(lambda: _says(rig) == "loading")
            edge.mend()
            rig.networks.provider.mend()
            let_pass(1)
            assert (statuses(run, "healthz"), statuses(run, "readyz")) == ([200, 200], [503, 503])
            wait_until(lambda: _says(rig) == "ready", 10)
        began = time.monotonic()
        result = rig.ask("[first] where is it?", task="intent", timeout_s=10)
        took_s = time.monotonic() - began

        assert result.status == "ok"
        assert took_s < FIRST_S
        wait_until(lambda: statuses(run, "readyz") == [200, 200], 5)
        assert len(run.started) == 2
        assert "Traceback" not in run.text
        rig.assert_clean()


def _says(rig: Rig) -> str:
    """What Redis answers now."""
    try:
        rig.redis.ping()
    except BusyLoadingError:
        return "loading"
    except RedisError:
        return "nothing"
    return "ready"


def test_c60_a_server_without_free_places_is_waited_for(rig: Rig) -> None:
    """maxclients is reached: who got in serves, who didn't waits and lives; ten connections a worker at most."""
    others = _connections(rig)
    assert others <= 2 * MOST_CONNECTIONS
    rig.command("CONFIG", "SET", "maxclients", str(others + 4))

    late = rig.run(2)
    with no_hot_loop(rig):
        results = rig.wait_for(rig.add_many(60))
        let_pass(2)
    assert {result.status for result in results} == {"ok"}
    assert "max number of clients" in late.text
    assert "ok" in {rig.ask(f"[crowded {i}]").status for i in range(5)}
    rig.command("CONFIG", "SET", "maxclients", "1000")

    wait_until(lambda: statuses(late, "readyz") == [200, 200], 5, why=late.text)
    assert _connections(rig) <= 4 * MOST_CONNECTIONS
    assert "MaxConnectionsError" not in late.text
    assert len(late.started) == 2


def _connections(rig: Rig) -> int:
    """Of workers: all but the test's own."""
    return len(rig.redis.client_list()) - 1


@pytest.mark.parametrize("end", [Store.stop, Store.kill], ids=["in order", "kill -9"])
def test_a_restart_costs_three_seconds_at_most(rig: Rig, end: Callable[[Store], None]) -> None:
    """Redis ends, in order or by kill -9, and comes back with its data: nothing is lost, service is back at once."""
    pids = rig.runs[0].live
    before = rig.add_many(60)
    rig.wait_for_count(len(rig.results) + 10)
    let_pass(1.1)  # kill -9 loses what the append-only file hasn't got yet: a second, with everysec

    end(rig.store)
    with no_hot_loop(rig, of=("lines",)):
        let_pass(2)
    rig.store.start()
    began = time.monotonic()
    first = rig.ask("[first]", timeout_s=10)
    took_s = time.monotonic() - began

    assert took_s < RESTART_S
    assert {result.status for result in [first, *rig.wait_for(before)]} == {"ok"}
    assert rig.runs[0].live == pids
