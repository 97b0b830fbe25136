"""Faults planted in the scripts' texts: the checks must catch each, or they guard nothing."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from lua import Script, part
from tests.script import troubles, views
from tests.script.arithmetic import START_US, Arithmetic, limits_of
from tests.script.bench import PRIMARY, Bench, altered, on_our_clock
from tests.script.cancelling import check_cancelled
from tests.script.walks import Step, follows_model, uncharges_its_own_slot, waits_are_exact
from tokenweir.connection import Connection

Check = Callable[[Bench], Awaitable[None]]
_OLDEST = "return slot_of(limit, since - limit.late_us)"
_LEVEL_WAIT = "ceil((need - item.level) / item.rate)"
BUDGET_FAULTS = {
    "refill doubled": ("was.level + passed * item.rate)", "was.level + passed * item.rate * 2)"),
    "no cap": ("min(item.capacity, was.level + ", "min(huge, was.level + "),
    "cold start is a full bucket": ("min(item.capacity, limit.cold)", "item.capacity"),
    "floor ignored": ("kept = min(share * capacity,", "kept = min(0 * capacity,"),
    "floor keeps large requests out": ("max(0, capacity - price))", "huge)"),
    "steps of the clock unguarded": ("restart and now or max(now, at or now)", "now"),
    "granted though a little short": ("item.level < need then", "item.level < need - 1 then"),
    "window not looked at": ("if price + kept + item.used > item.allowed then", "if false then"),
    "window a slot too long": (_OLDEST, f"{_OLDEST} - 1"),
    "window a slot too short": (_OLDEST, f"{_OLDEST} + 1"),
    "window without the way to the provider": (_OLDEST, "return slot_of(limit, since)"),
    "large requests at once after a cold start": ("if price > capacity then", "if false then"),
    "given back as fresh credit": ("    budget.put(item, -amount, granted_at)\n", ""),
    "a slot too many passed over": (
        "slot_of(item.limit, now) - item.first + 1 do",
        "slot_of(item.limit, now) - item.first do",
    ),
    "slots kept for ever": ("item.first, item.charges = item.first + gone, kept", ""),
    "wait too short": (_LEVEL_WAIT, "ceil((need - item.level) / item.rate * 0.9)"),
    "wait too long": (_LEVEL_WAIT, f"{_LEVEL_WAIT} + 1000"),
    "wait for the wrong slot": ("(item.first + i) * limit", "(item.first + i - 1) * limit"),
}


def check_budget(text: str | None) -> None:
    """A fast subset of the arithmetic's checks, always with the same steps."""
    for seed in range(12):
        chance = random.Random(seed)
        settings = {"rpm": chance.choice([10, 100, 30_000]), "enforcement": chance.choice(["auto", "continuous"])}
        limit = limits_of(window_s=chance.choice([6, 60]), **settings)[0]

        def step(limit: object = limit, chance: random.Random = chance, rpm: int = limit.limit) -> Step:
            slot_us = 100_000
            pause_us = chance.choice([0, chance.randint(0, slot_us), chance.randint(0, 80 * slot_us)])
            if chance.random() < 0.1:
                pause_us = chance.choice([-slot_us * chance.randint(1, 9), 100_000_000])
            return pause_us, chance.randint(0, max(1, int(rpm * chance.choice([0.02, 0.1, 0.6])))), chance.randrange(3)

        steps = [step() for _ in range(120)]
        follows_model(limit, steps, text=text)
        waits_are_exact(limit, steps, text=text)
        uncharges_its_own_slot(limit, steps, text=text)
    check_digits(text)
    check_large(text)


def check_digits(text: str | None) -> None:
    """Nothing is cut off on the way to Redis and back."""
    limit = limits_of(tpm=10**15)[0]
    budget, now, amount = Arithmetic([limit], text=text), START_US + 123_457, 10**13 + 7
    budget.charge(now, {"tpm": amount})
    assert float(budget.stored("tpm.level")) == limit.cold - amount
    for index in range(1, 20):
        budget.charge(now + index * limit.slot_us, {"tpm": amount})
    assert budget.stored("tpm.cum") == str(20 * amount)


def check_large(text: str | None) -> None:
    """What is as large as the limit goes, for the lowest class as well, but neither at once nor too late."""
    limit = limits_of(tpm=30_000)[0]
    budget = Arithmetic([limit], text=text)
    whole, known = {"tpm": limit.limit}, START_US + limit.window_us + limit.late_us
    assert START_US + budget.wait(START_US, whole, 2) >= known
    assert budget.acquire(known, whole, 2) <= 0
    free = (known // limit.slot_us + 1) * limit.slot_us + limit.window_us + limit.late_us
    assert known + budget.wait(known, {"tpm": 1}) == free
    assert budget.acquire(free, {"tpm": 1}) <= 0
    later = known + 1000 * limit.window_us
    budget.charge(later, {"tpm": 8_400})
    assert later + budget.wait(later, {"tpm": 21_000}, 2) < later + limit.window_us // 2
    for amount in (6_000, 6_000):
        budget.uncharge(later, {"tpm": amount}, later)
    assert (budget.used(later), budget.level(later)) == (0, limit.capacity), "no more comes back than was charged"


def test_the_checks_pass_on_the_real_text() -> None:
    """Without a planted fault the fast checks find nothing."""
    check_budget(None)


@pytest.mark.parametrize("fault", BUDGET_FAULTS)
def test_faults_in_the_arithmetic_are_caught(fault: str) -> None:
    """A budget that counts wrongly in any of these ways doesn't pass."""
    right, wrong = BUDGET_FAULTS[fault]
    text = part("budget")
    assert text.count(right) == 1, "the text has changed: plant the fault anew"

    with pytest.raises(AssertionError):
        check_budget(text.replace(right, wrong))


LEARNING_FAULTS = {
    "the probe isn't alone": ("budget", "if state.pause_until > 0 then state.probe_at", "if false then state.probe_at"),
    "the probe is never given up": ("budget", "state.probe_at + PROBE_US", "huge"),
    "a probe given back blocks": ("budget", "if state.probe_at == granted_at then", "if false then"),
    "any answer ends a pause": ("feedback", "granted_at >= state.pause_until", "true"),
    "every refusal narrows": ("feedback", "granted_at >= state.paused_at", "true"),
    "narrowed to nothing": ("feedback", "max(NARROWEST, state.factor * NARROWER)", "state.factor * NARROWER"),
    "a pause can be shortened": ("feedback", "if till > state.pause_until then", "if true then"),
    "old headers are believed": ("feedback", " or state.now - sent_at > STALE_US", ""),
    "headers of a day are believed": ("feedback", "window < item.limit.window_us * 2", "true"),
    "what is on its way isn't reckoned with": (
        "feedback",
        "max(0, charged_since(",
        "max(0, 0 * charged_since(",
    ),
    "headers raise the level": ("feedback", "min(item.level, max(left", "(max(left"),
    "no bottom for what headers say": ("feedback", ", LOWEST * item.allowed))", ", -huge))"),
    "no margin for others": ("feedback", "left - since - MARGIN * item.allowed, LOWEST", "left - since, LOWEST"),
    "our own calls are strangers": ("feedback", "lacks > item.used + STRANGE", "lacks > item.level + STRANGE"),
    "lost charges stay lost": (
        "feedback",
        "budget.put(item, min(missing,",
        "budget.put(item, 0 * min(missing,",
    ),
    "grants before all have spoken": ("budget", "until_at, now = state.settle_until,", "until_at, now = 0,"),
    "a debt is forgotten": ("feedback", "item.level, item.debt = item.level - (debt - item.debt), debt", ""),
    "a day begins at midnight": ("budget", "floor((now - limit.resets_us) / limit", "floor(now / limit"),
    "calls in flight aren't counted": ("budget", "or most > 0 and state.in_flight >= most", ""),
    "always refunded": ("feedback", "if refund then budget.take_back", "if true then budget.take_back"),
    "use beyond the reservation is free": ("feedback", "      budget.add(item, -unused)\n", ""),
}


def test_the_lessons_pass_on_the_real_texts() -> None:
    """Without a planted fault nothing is found."""
    troubles.all_of_it(None, None)


@pytest.mark.parametrize("fault", LEARNING_FAULTS)
def test_faults_in_what_a_budget_learns_are_caught(fault: str) -> None:
    """A budget that learns the wrong thing, or forgets, doesn't pass."""
    where, right, wrong = LEARNING_FAULTS[fault]
    assert part(where).count(right) == 1, "the text has changed: plant the fault anew"
    text = part(where).replace(right, wrong)

    with pytest.raises(AssertionError):
        troubles.all_of_it(text if where == "budget" else None, text if where == "feedback" else None)


async def check_repeats(bench: Bench) -> None:
    """Repeats, late comers and second entries change nothing."""
    held = await bench.arrive(*(bench.request(name, tenant=name) for name in "ab"))
    await bench.admit(held)
    before = await views.snapshot(bench)
    assert [decision for decision, _ in await bench.admit(held)] == ["gone", "gone"]
    assert await views.snapshot(bench) == before
    first, second = await bench.take("premium")
    assert await bench.start([first]) == ["started"]
    await bench.advance(0.6)
    assert await bench.start([second]) == ["given_back"]
    assert await views.budget(bench) == (1, 100, 2, 200)
    assert await bench.finish(first, used=120) == [1]
    assert await bench.finish(first, used=120) == [0]
    assert (await views.budget(bench)).tokens == 120
    (late,) = await bench.arrive(first.request)
    assert [decision for decision, _ in await bench.admit([late])] == ["gone"]


async def check_order(bench: Bench) -> None:
    """Tenants queue behind their own work, and the first in the backlog isn't starved by small low work."""
    await bench.fill()
    assert await bench.send(bench.request("large", prompt_tokens=460, tenant="a")) == ["deferred"]
    await bench.advance(2.5)
    small = {"prompt_tokens": 1, "output_tokens": 0}
    assert await bench.send(bench.request("own", tenant="a", **small)) == ["deferred"]
    assert await bench.send(bench.request("low", tenant="b", priority="batch", **small)) == ["premium"]
    await bench.redis("DEL", bench.keys.key("premium"))
    await bench.redis("XGROUP", "CREATE", bench.keys.key("premium"), "premium", "0", "MKSTREAM")


async def check_floors(bench: Bench) -> None:
    """Batch leaves its share of the burst to others."""
    batch = [bench.request(name, tenant=name, priority="batch", prompt_tokens=200) for name in "abc"]
    assert await bench.send(*batch) == ["premium", "premium", "deferred"]


async def check_starving(bench: Bench) -> None:
    """A large request gets its turn under endless small ones, and lower classes give way to it."""
    await views.work(bench, seconds=60, every_s=0.8)
    await bench.send(bench.request("large", prompt_tokens=4_960, tenant="large"))
    assert await views.work(bench, until="large", seconds=120) < 120


async def check_flights(bench: Bench) -> None:
    """A call is in flight from its grant to its end, whatever the end is."""
    held = [bench.request(name, tenant=name) for name in "abcd"]
    assert await bench.send(*held) == ["premium"] * 4
    first, second, third, fourth = await bench.take("premium")
    await bench.start([first, second, third])
    await bench.finish(first)
    await bench.retry(second)
    await bench.give_back([fourth])
    assert (await views.budget_kept(bench))["in_flight"] == 1
    again = msgspec.structs.replace(third.request, attempt=2)
    await bench.admit(await bench.arrive(again))
    assert (await views.budget_kept(bench))["in_flight"] == 1


SCRIPT_FAULTS = {
    "nothing kept for large ones at the gate": ("gate_admit", "not kept(deployment, score)", "true", check_starving),
    "nobody in line": (
        "backlog_drain",
        "if i == 1 and nearest then reserve(",
        "if false then reserve(",
        check_starving,
    ),
    "in flight for ever": ("entries_finish", "state.in_flight - 1", "state.in_flight", check_flights),
    "retries stay in flight": ("entries_retry", "if row.held then forget(row.held) end", "", check_flights),
    "the dead stay in flight": ("gate_admit", "give_back(granted(row.id, row.attempt - 1))", "", check_flights),
    "fence of the gate removed": ("gate_admit", "not waits[row.lane][row.entry]", "false", check_repeats),
    "terminal check of the gate removed": ("gate_admit", "terminal(row.id, row.replay)", "false", check_repeats),
    "tenants not kept in line": ("gate_admit", "(queued[row.tenant] or 3) > row.rank", "true", check_order),
    "floors of the gate ignored": (
        "gate_admit",
        "choose(cost, share, row.score)",
        "choose(cost, 0, row.score)",
        check_floors,
    ),
    "cancelled twice": ("request_cancel", "if ended(mark, replay) then", "if false then", check_cancelled),
    "no worker is told": ("request_cancel", "if not waits or", "if false and", check_cancelled),
    "a cancelled call stays in flight": ("entries_forward", "and group ~= 'premium' ", "", check_cancelled),
    "a second result": ("entries_finish", "not ended(mark, row.result.replay)", "not false", check_repeats),
    "settled at every finish": ("entries_finish", "  forget_all(over)\n", "", check_repeats),
    "late grants started": ("calls_start", "now - held.at <=", "0 <=", check_repeats),
    "given back without the refund": ("calls_start", "elseif held then undo(held)", "", check_repeats),
    "budgets not saved by the gate": ("gate_admit", "expire_grants()\nsave_budgets()\n", "", check_repeats),
}


@pytest.mark.anyio
@pytest.mark.one_server("it is about our texts and our checks")
@pytest.mark.leaves_keys("these checks stop in the middle")
@pytest.mark.parametrize(
    "check", [check_repeats, check_order, check_floors, check_starving, check_flights, check_cancelled]
)
async def test_the_checks_pass_on_the_real_scripts(connection: Connection, check: Check) -> None:
    """Without a planted fault the checks find nothing."""
    bench = Bench(connection, (PRIMARY,), lambda script: script)
    await bench.open()

    await check(bench)


@pytest.mark.anyio
@pytest.mark.one_server("it is about our texts and our checks")
@pytest.mark.leaves_keys("a broken script leaves a broken pool")
@pytest.mark.parametrize("fault", SCRIPT_FAULTS)
async def test_faults_in_the_scripts_are_caught(connection: Connection, fault: str) -> None:
    """A script that forgets a fence, a refund or a rule doesn't pass."""
    name, right, wrong, check = SCRIPT_FAULTS[fault]
    # Here and not below, where a fault that isn't there any more would pass for one that was caught.
    assert right in on_our_clock(name).text, "the text has changed: plant the fault anew"

    def mend(script: Script) -> Script:
        if script.name != name:
            return script
        return altered(script, script.text.replace(right, wrong))

    bench = Bench(connection, (PRIMARY,), mend)
    await bench.open()

    with pytest.raises(AssertionError):
        await check(bench)
