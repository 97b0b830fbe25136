"""Limits are put in place once; a budget begins when its limits do."""

from __future__ import annotations

import msgspec
import pytest

from pipeline.config import Deployment
from pipeline.limits import seed, terms
from tests.script import views
from tests.script.bench import PRIMARY, START_US, Bench, Held
from tokenweir.connection import Connection
from tokenweir.terms import Terms

pytestmark = pytest.mark.anyio


@pytest.mark.leaves_keys("only limits and the test's clock")
async def test_a_budget_is_born_with_its_limits(connection: Connection) -> None:
    """The cold start runs from the first worker's start: nobody's first request has to wait for it."""
    bench = Bench(connection, (PRIMARY,), lambda script: script)
    await bench.forward_to(START_US)

    await bench.seed((PRIMARY,))

    assert (await views.budget_kept(bench))["born"] == START_US
    assert await views.level(bench) < 0


async def test_a_worker_that_starts_later_changes_nothing(bench: Bench) -> None:
    """Workers of the same configuration leave a running budget alone."""
    await bench.send(bench.request("a"))
    before = await views.snapshot(bench)

    await bench.seed(bench.deployments)

    assert await views.snapshot(bench) == before


async def test_a_changed_configuration_keeps_what_was_charged(bench: Bench) -> None:
    """Another limit in the file takes effect at once, on top of what the window holds."""
    await bench.send(bench.request("a"))
    charged = await views.budget(bench)

    await bench.seed((msgspec.structs.replace(PRIMARY, tpm=5_000),))

    assert await views.budget(bench) == charged
    assert int(await bench.redis("HGET", bench.keys.key("limits"), "@version")) == 2


async def seeded(bench: Bench, deployment: Deployment) -> list[str]:
    """Seed with one deployment's configuration; returns for which ones other limits are in force."""
    _, differ = await bench.run("limits_seed", seed(deployment))
    return [name.decode() for name in differ]


async def in_force(bench: Bench) -> int:
    """The token limit that the gate counts with."""
    text = await bench.redis("HGET", bench.keys.key("limits"), "primary")
    return msgspec.json.decode(text, type=Terms).allowed.limits["tpm"]


async def put(bench: Bench, deployment: Deployment) -> int:
    """What `limits set` does; returns the new version."""
    return int(await bench.run("limits_set", [deployment.name, msgspec.json.encode(terms(deployment))]))


async def test_two_configurations_in_use_dont_take_turns(bench: Bench) -> None:
    """In a rolling update workers of the old file that start again change nothing, and are told so."""
    old, new = PRIMARY, msgspec.structs.replace(PRIMARY, tpm=5_000)
    assert await seeded(bench, new) == []

    for _ in range(3):
        assert await seeded(bench, old) == ["primary"]
        assert await seeded(bench, new) == []

    assert await in_force(bench) == 5_000


async def test_what_an_operator_set_live_stays(bench: Bench) -> None:
    """Workers that start later, of whichever known configuration, leave a live change alone; a new file replaces it."""
    assert await put(bench, msgspec.structs.replace(PRIMARY, tpm=8_000)) == 2

    assert await seeded(bench, PRIMARY) == ["primary"]
    assert await in_force(bench) == 8_000

    assert await seeded(bench, msgspec.structs.replace(PRIMARY, tpm=9_000)) == []
    assert await in_force(bench) == 9_000


async def test_limits_of_an_unknown_deployment_arent_set(bench: Bench) -> None:
    """A mistyped name changes nothing."""
    before = await views.snapshot(bench)

    assert await put(bench, Deployment(name="secondary", rpm=5)) == 0

    assert await views.snapshot(bench) == before


async def test_a_change_counts_at_the_next_decision(bench: Bench) -> None:
    """Lowered, nothing goes that the smaller window hasn't room for; raised, waiting work is looked at anew."""
    await bench.send(*(bench.request(f"{n}", tenant=f"{n}") for n in range(9)))
    await put(bench, msgspec.structs.replace(PRIMARY, tpm=900))

    assert await bench.send(bench.request("next", tenant="next")) == ["deferred"]
    await bench.drain(*await bench.notices())
    await put(bench, msgspec.structs.replace(PRIMARY, tpm=100_000))
    await bench.advance(1)

    assert (await bench.drain(*await bench.notices())).premium == 1


async def test_a_pause_can_be_ended_by_hand(bench: Bench) -> None:
    """An operator who mended the cause needn't wait for the probe."""
    (held,) = await _called(bench)
    await bench.retry(held, wait_s=0, pause_s=60, limited=True)
    assert await bench.send(bench.request("b", tenant="b")) == ["deferred"]

    assert await bench.run("budgets_resume", ()) == [b"primary"]

    assert (await bench.drain(*await bench.notices())).premium == 2


async def _called(bench: Bench) -> list[Held]:
    await bench.send(bench.request("a", tenant="a"))
    held = await bench.take("premium")
    await bench.start(held)
    return held


async def test_what_people_see_is_what_the_gate_counts_with(bench: Bench) -> None:
    """The view tells level, use, pause and calls in flight as of now, and changes nothing."""
    (held,) = await _called(bench)
    await bench.retry(held, pause_s=60, limited=True)
    await bench.drain(*await bench.notices())
    await bench.advance(0.31)
    before = await views.snapshot(bench)

    ((name, paused_us, why, in_flight, factor, refunds, limits),) = await bench.run("budgets_view", ())

    assert (name, int(paused_us), why, int(in_flight)) == (b"primary", 59_690_000, b"provider_429", 0)
    assert (int(factor), refunds) == (701, 0)
    assert limits == [[b"rpm", b"9", b"10", b"1", b"100"], [b"tpm", b"935", b"1000", b"100", b"10000"]]
    assert await views.snapshot(bench) == before
