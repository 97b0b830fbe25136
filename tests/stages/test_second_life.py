"""A dead letter that is replayed opens a numbered second life, from the first stage on."""

from __future__ import annotations

import pytest

from pipeline.config import Deployment, Edge, Pool
from pipeline.outcome import Done, Forward
from pipeline.stage import Delivery
from stages.classify import Classify
from tokenweir.keys import Keys

POOL = Pool(deployments=(Deployment(rpm=500, tpm=30_000),), edge=Edge())


def _delivery(**fields: bytes) -> Delivery:
    return Delivery(
        entry_id="1796000000000-0", lane="ingest", fields={name.encode(): text for name, text in fields.items()}
    )


@pytest.mark.anyio
async def test_a_replayed_entry_is_answered_again() -> None:
    """A replayed letter isn't taken for the request that already has its result."""
    outcome = await Classify(POOL, Keys()).handle(_delivery(id=b"a", prompt=b"hello", replay=b"2"))

    assert isinstance(outcome, Forward)
    assert outcome.request.replay == 2


@pytest.mark.anyio
async def test_a_replayed_error_is_an_error_of_its_own_life() -> None:
    """A letter that still can't be served says so again, under its new number."""
    body = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1000000}'
    outcome = await Classify(POOL, Keys()).handle(_delivery(id=b"a", body=body, replay=b"1"))

    assert isinstance(outcome, Done)
    assert (outcome.result.replay, outcome.result.code) == (1, "too_large_for_limit")


@pytest.mark.anyio
@pytest.mark.parametrize("replay", [b"", b"-1", b"x", b"99999", b"1e3"])
async def test_a_nonsense_number_counts_as_the_first_life(replay: bytes) -> None:
    """What isn't a small number was not written by a replay."""
    outcome = await Classify(POOL, Keys()).handle(_delivery(id=b"a", prompt=b"hello", replay=replay))

    assert isinstance(outcome, Forward)
    assert outcome.request.replay == 0
