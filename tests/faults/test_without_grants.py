"""Twelve workers under full load lose Redis, and then only their scripts: nobody calls on his own account."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.faults.strain import let_pass, no_hot_loop
from tests.integration.rig import Rig, open_rig

pytestmark = pytest.mark.slow

WORKERS, REQUESTS = 12, 400
# A hundred a second, fewer than come in: what a worker would call without a grant is refused by the provider.
RPM = 600
# Shortened from 20 s: by then every worker waits, with pauses that have reached their longest.
AWAY_S = 6.0
# Calls that were granted before may still start within this.
SETTLED_S = 1.5


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """Twelve workers with one budget; Redis is reached through a network that fails on command."""
    with open_rig(networks=True, rpm=RPM, lease_s=10.0) as opened:
        opened.run(WORKERS)
        opened.ask("the first one warms up", complexity="complex")
        yield opened


@contextmanager
def _cut_off(rig: Rig) -> Iterator[None]:
    rig.networks.redis.cut()
    yield
    rig.networks.redis.mend()


@contextmanager
def _no_scripts(rig: Rig) -> Iterator[None]:
    rig.command("ACL", "SETUSER", "default", "-@scripting")
    yield
    rig.command("ACL", "SETUSER", "default", "+@scripting")


@pytest.mark.parametrize("trouble", [_cut_off, _no_scripts], ids=["cut", "scripts"])
def test_c23_without_a_grant_nobody_calls(rig: Rig, trouble: Callable[[Rig], AbstractContextManager[None]]) -> None:
    """Twelve workers can't ask the gate: not one call is made meanwhile, and when they can again there is no rush."""
    pids, before = rig.runs[0].live, rig.calls()
    ids = rig.add_many(REQUESTS, complexity="complex")
    rig.wait_for_count(len(rig.results) + 50)

    with no_hot_loop(rig):
        with trouble(rig):
            let_pass(SETTLED_S)
            settled = rig.calls()
            let_pass(AWAY_S - SETTLED_S)
            assert rig.calls() == settled
        results = rig.wait_for(ids, timeout_s=40)

    assert {(result.status, result.attempt) for result in results} == {("ok", 1)}
    assert rig.calls() == before + len(ids)  # one grant, one attempt, one call
    assert rig.calls() <= rig.budget()["rpm.cum"]
    assert rig.book().premium.rejected == 0
    assert rig.runs[0].live == pids
    assert "Traceback" not in rig.runs[0].text
    rig.assert_clean()
