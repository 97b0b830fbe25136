"""The network to the provider breaks, falls silent or trickles: one result, the charge stands, the slot comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.proxy import Proxy
from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig

pytestmark = pytest.mark.slow

# What the provider's network is given up for, far below the defaults.
CONNECT_S, FIRST_BYTE_S, BETWEEN_S, CALL_S = 0.5, 1.5, 1.0, 4.0
SLOTS = 16


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """One worker without an edge's help, which reaches its provider through a network that fails on command."""
    patience = {"connect_s": CONNECT_S, "first_byte_s": FIRST_BYTE_S, "between_chunks_s": BETWEEN_S, "call_s": CALL_S}
    with open_rig(networks=True, call={**patience, "settlement": "none"}) as opened:
        opened.run()
        opened.wait_for([opened.add(f"[warm {i}]", complexity="complex") for i in range(5)])
        yield opened


@pytest.fixture
def network(rig: Rig) -> Iterator[Proxy]:
    """That network. Afterwards all slots are free again, and every call at the provider was charged for."""
    yield rig.networks.provider
    rig.networks.provider.mend()
    rig.assert_clean(timeout_s=20)
    wait_until(lambda: not rig.budget().get("in_flight"), 5, why="slots are kept")
    results = rig.wait_for([rig.add(f"[slots {i}]", complexity="complex") for i in range(SLOTS)], timeout_s=10)
    assert {result.status for result in results} == {"ok"}
    assert rig.budget()["rpm.cum"] >= rig.calls()
    assert rig.book().premium.rejected == 0
    assert "Traceback" not in rig.runs[0].text


def test_a_stream_that_breaks_off_is_called_again(rig: Rig, network: Proxy) -> None:
    """The connection is cut in the middle of an answer: a second call, granted and charged anew, brings it whole."""
    charged = rig.budget()["rpm.cum"]
    network.break_all()  # those that are kept alive: each call gets a connection of its own
    network.lose_replies(2, after_bytes=1200)
    results = rig.wait_for([rig.add(f"[cut {i}]", complexity="complex") for i in range(2)])

    assert {(result.status, result.attempt) for result in results} == {("ok", 2)}
    assert rig.calls("[cut") == 4
    assert rig.budget()["rpm.cum"] == charged + 4


def test_answers_that_never_come_are_given_up(rig: Rig, network: Proxy) -> None:
    """The provider's answers vanish, connections stay open: given up in time, called again when the network is back."""
    network.swallow("replies")
    ids = [rig.add(f"[silent {i}]", complexity="complex") for i in range(8)]
    wait_until(lambda: set(_failed(rig)) >= set(ids), FIRST_BYTE_S + 5, why=f"{_failed(rig)}")
    network.mend()
    results = rig.wait_for(ids)

    assert {result.status for result in results} == {"ok"}
    assert {_failed(rig)[id_] for id_ in ids} == {"first_byte_timeout"}
    assert rig.calls("[silent") >= 2 * len(ids)


def test_answers_that_never_come_at_all_end(rig: Rig, network: Proxy) -> None:
    """The network stays silent: after all its attempts a request has a typed error, not an endless wait."""
    network.swallow("replies")
    result = rig.ask("[hopeless]", timeout_s=4 * (CONNECT_S + FIRST_BYTE_S) + 10, complexity="complex")

    assert (result.status, result.code, result.attempt) == ("error", "provider_unavailable", 3)


def test_an_answer_that_trickles_ends_with_the_call_s_time(rig: Rig, network: Proxy) -> None:
    """A few bytes now and then, never a pause: the call is given up after `call_s`, and made again."""
    network.slow(0.05, "replies", chunk_bytes=24)
    ids = [rig.add(f"[trickle {i}]", complexity="complex") for i in range(2)]
    wait_until(lambda: set(_failed(rig)) >= set(ids), CALL_S + 5)
    network.mend()
    results = rig.wait_for(ids)

    assert {result.status for result in results} == {"ok"}
    assert {(_failed(rig)[result.id], result.attempt) for result in results} == {("call_timeout", 2)}


def _failed(rig: Rig) -> dict[str, str]:
    """Why the last attempt of a request failed, by its id."""
    return {line["request_id"]: line["reason"] for line in rig.runs[0].events("attempt_failed")}
