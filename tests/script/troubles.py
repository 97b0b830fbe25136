"""Checks of what a budget survives and learns, for any text of it: the real one passes, a broken one must not."""

from __future__ import annotations

import random

from tests.script.arithmetic import START_US, Arithmetic, Charge, Memory, limits_of, warm, worst

SECOND_US = 1_000_000


def fails_over(
    seed: int, enforcement: str, largest: float, *, text: str | None = None, learning: str | None = None
) -> None:
    """Four servers die one after the other, each with up to five seconds of writes: no window exceeds the limit."""
    chance = random.Random(seed)
    limit = limits_of(tpm=30_000, enforcement=enforcement)[0]
    budget, now = warm(limit, text=text, learning=learning)
    charges, memories, replica, copied_at, changes = list[Charge](), list[Memory](), budget.snapshot(), now, 0
    end = now + 400 * SECOND_US
    while now < end:
        amount = chance.choice([1, 300, int(largest * limit.limit)])
        wait_us = budget.acquire(now, {"tpm": amount})
        if wait_us <= 0:
            charges.append(Charge(now, amount))
            memories.append(budget.remember(now, "tpm"))
            continue
        now += min(int(wait_us), chance.randrange(2 * SECOND_US))
        if now - copied_at > 5 * SECOND_US:
            if chance.random() < 0.06 and changes < 4:
                changes += 1
                budget.move(f"server {changes}", replica)
                for memory in chance.sample(memories[-12:], len(memories[-12:])):
                    budget.seen(now + chance.randrange(SECOND_US), "tpm", memory)
            replica, copied_at = budget.snapshot(), now
    assert worst(charges, limit.window_us + limit.late_us) <= limit.limit


def loses_everything(seed: int, *, text: str | None = None, learning: str | None = None) -> None:
    """All state is lost at any moment after a request of half the limit: no window exceeds the limit."""
    chance = random.Random(seed)
    limit = limits_of(tpm=30_000)[0]
    budget, now = warm(limit, text=text, learning=learning)
    charges, memory = list[Charge](), budget.remember(now, "tpm")
    lose_at = now + chance.randrange(70 * SECOND_US)
    end = lose_at + 70 * SECOND_US
    while now < end:
        amount = chance.choice([300, 3_000, 15_000])
        wait_us = budget.acquire(now, {"tpm": amount})
        if wait_us <= 0:
            charges.append(Charge(now, amount))
            memory = budget.remember(now, "tpm")
            continue
        now += min(int(wait_us), chance.randrange(1, SECOND_US))
        if lose_at and now >= lose_at:
            lose_at = 0
            budget.lose()
            budget.wait(now, {"tpm": 1})
            budget.seen(now + SECOND_US // 4, "tpm", memory)
    assert worst(charges, limit.window_us + limit.late_us) <= limit.limit


def probes_alone(*, text: str | None = None, learning: str | None = None) -> None:
    """One call goes first after a pause; only its answer, or ten seconds, let others follow."""
    budget, now = warm(*limits_of(rpm=500), text=text, learning=learning)
    before = now
    budget.acquire(before, {"rpm": 1})
    budget.pause(now, now + 5 * SECOND_US)
    budget.pause(now, now + 3 * SECOND_US)
    budget.settle(now + SECOND_US, {"rpm": 1}, None, before)
    assert budget.acquire(now + SECOND_US, {"rpm": 1}) == 4 * SECOND_US
    now += 5 * SECOND_US
    assert budget.acquire(now, {"rpm": 1}) == 0
    assert budget.acquire(now, {"rpm": 1}) == 10 * SECOND_US
    budget.uncharge(now, {"rpm": 1}, now)
    assert budget.acquire(now, {"rpm": 1}) == 0
    budget.settle(now + 1, {"rpm": 1}, None, now)
    assert [budget.acquire(now + 1, {"rpm": 1}) for _ in range(2)] == [0, 0]


def narrows_once(*, text: str | None = None, learning: str | None = None) -> None:
    """Many refusals of one moment narrow the rate once; of calls from before it, not again."""
    budget, now = warm(*limits_of(rpm=600), text=text, learning=learning)
    for _ in range(10):
        budget.refused(now, now - SECOND_US, SECOND_US)
    assert 0.69 < float(budget.stored("factor") or 1) < 0.72
    for _ in range(20):
        now += 2 * SECOND_US
        budget.refused(now, now, SECOND_US)
    assert 0.19 < float(budget.stored("factor") or 1) < 0.25


def listens(*, text: str | None = None, learning: str | None = None) -> None:
    """What the provider says is left lowers the level, by what it can't know and a margin; old news don't."""
    limit = limits_of(tpm=30_000, enforcement="continuous")[0]
    budget, now = warm(limit, text=text, learning=learning, feedback=True)
    budget.acquire(now, {"tpm": 1_000})
    budget.heard(now + SECOND_US, "tpm", 5_000, 30_000, 50_000 * SECOND_US, now)
    budget.heard(now + 16 * SECOND_US, "tpm", 5_000, 30_000, 50 * SECOND_US, now)
    assert budget.level(now + 16 * SECOND_US) > 14_000
    budget.acquire(now + 16 * SECOND_US, {"tpm": 500})
    budget.heard(now + 16 * SECOND_US, "tpm", 10_000, 30_000, 40 * SECOND_US, now + 15_900_000)
    assert budget.level(now + 16 * SECOND_US) == 10_000 - 500 - 1_500
    budget.heard(now + 16 * SECOND_US, "tpm", 0, 30_000, 60 * SECOND_US, now + 15_900_000)
    assert budget.level(now + 16 * SECOND_US) == -300
    budget.heard(now + 16 * SECOND_US, "tpm", 29_000, 30_000, 2 * SECOND_US, now + 15_900_000)
    assert budget.level(now + 16 * SECOND_US) == -300


def tells_strangers_from_ours(*, text: str | None = None, learning: str | None = None) -> None:
    """What a provider counts of our own calls is no foreign use, however it counts; what goes beyond is."""
    limit = limits_of(tpm=30_000)[0]
    budget, now = warm(limit, text=text, learning=learning)
    for _ in range(10):
        budget.charge(now, {"tpm": 2_900})
        now += 6 * SECOND_US
    assert budget.heard(now, "tpm", 1_000, 30_000, 59 * SECOND_US, now - SECOND_US) is None
    now += 60 * SECOND_US
    assert budget.heard(now, "tpm", 20_000, 30_000, 59 * SECOND_US, now - SECOND_US) is None, "another window"
    assert budget.heard(now, "tpm", 20_000, 30_000, 20 * SECOND_US, now - SECOND_US) == "foreign_use"


def waits_for_all_to_speak(*, text: str | None = None, learning: str | None = None) -> None:
    """After a change of server nothing is granted for a second."""
    budget, now = warm(*limits_of(rpm=500), text=text, learning=learning)
    budget.acquire(now, {"rpm": 1})
    budget.move("second")
    assert [budget.acquire(now + after, {"rpm": 1}) for after in (0, SECOND_US)] == [SECOND_US, 0]


def counts_days(*, text: str | None = None, learning: str | None = None) -> None:
    """A quota of a calendar day is back at its hour, and not before."""
    limit = limits_of(rpd=100, day_resets_at="08:00")[0]
    budget = Arithmetic([limit], text=text, learning=learning)
    noon = (START_US // limit.window_us + 2) * limit.window_us + 12 * 3600 * SECOND_US
    budget.charge(noon, {"rpd": 100})
    assert budget.acquire(noon, {"rpd": 1}) == 20 * 3600 * SECOND_US + limit.late_us
    assert budget.acquire(noon + 20 * 3600 * SECOND_US - 1, {"rpd": 1}) > 0
    assert budget.acquire(noon + 20 * 3600 * SECOND_US + limit.late_us, {"rpd": 1}) == 0


def counts_flights(*, text: str | None = None, learning: str | None = None) -> None:
    """No more calls at the same time than are allowed."""
    budget, now = warm(*limits_of(rpm=500), text=text, learning=learning, max_in_flight=2)
    assert [budget.acquire(now, {"rpm": 1}) for _ in range(3)] == [0, 0, SECOND_US]


def settles_by_policy(*, text: str | None = None, learning: str | None = None) -> None:
    """Unused tokens come back under `refund` only, and what was used beyond is charged."""
    for policy, left in (("none", 100), ("refund", 40)):
        budget, now = warm(*limits_of(tpm=30_000), text=text, learning=learning, settlement=policy)
        budget.acquire(now, {"tpm": 100})
        budget.settle(now + 4 * SECOND_US, {"tpm": 100}, {"tpm": 40}, now)
        assert budget.used(now + 4 * SECOND_US) == left
        budget.settle(now + 4 * SECOND_US, {"tpm": 100}, {"tpm": 130}, now)
        assert budget.used(now + 4 * SECOND_US) == left + 30


def all_of_it(text: str | None, learning: str | None) -> None:
    """All of the above, always with the same seeds."""
    probes_alone(text=text, learning=learning)
    narrows_once(text=text, learning=learning)
    listens(text=text, learning=learning)
    tells_strangers_from_ours(text=text, learning=learning)
    waits_for_all_to_speak(text=text, learning=learning)
    counts_days(text=text, learning=learning)
    counts_flights(text=text, learning=learning)
    settles_by_policy(text=text, learning=learning)
    for seed in range(12):
        loses_everything(seed, text=text, learning=learning)
        fails_over(seed, "auto", 0.5, text=text, learning=learning)
