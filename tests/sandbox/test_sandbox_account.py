"""The account as a whole, on a clock of our own: refunds, changes and the other program together."""

from msgspec.structs import replace

from pipeline.sandbox.account import Account
from pipeline.sandbox.limits import costs_of
from pipeline.sandbox.settings import SandboxSettings

_SETTINGS = SandboxSettings(rpm=100, tpm=1000, itpm=1000, otpm=1000, rpd=100, tpd=1000, refund=True)
_CAPPED = costs_of(prompt_tokens=10, output_tokens=300)
_REAL = costs_of(prompt_tokens=10, output_tokens=50)


def _levels(account: Account, now: float) -> dict[str, float]:
    return {name: budget.level(now) for name, budget in account.limits.budgets.items()}


def test_every_limit_of_tokens_gets_its_part_back() -> None:
    """What an answer left of its cap is free again in the minute's and the day's tokens; requests stay spent."""
    account = Account(_SETTINGS, 0)

    account.end(account.charge(_CAPPED, 1), 2, used=_REAL)

    assert _levels(account, 2) == {"rpm": 99, "tpm": 940, "itpm": 990, "otpm": 950, "rpd": 99, "tpd": 940}
    assert account.refunded == 250


def test_a_call_from_before_a_change_gives_nothing_to_the_new_budgets() -> None:
    """Fresh budgets are fresh: what the old ones get back isn't added to what new calls have used of them."""
    account = Account(replace(_SETTINGS, enforcement="bucket"), 0)
    old = account.charge(_CAPPED, 1)
    account.change(replace(_SETTINGS, enforcement="bucket", rpm=50), 1)
    account.charge(_CAPPED, 1)

    account.end(old, 1, used=_REAL)

    assert _levels(account, 1)["tpm"] == 690
    assert account.ledger.worst_window().tokens == 0.31


def test_what_has_arrived_before_a_change_counts_by_the_old_terms() -> None:
    """The other program's calls until the change are entered, even if nobody looked since."""
    account = Account(replace(_SETTINGS, foreign_share=0.5, foreign_tokens=10), 0)

    account.change(_SETTINGS, 30)

    assert account.foreign.admitted > 10
    account.advance(60)
    assert account.foreign.admitted + account.foreign.rejected < 50


def test_the_other_program_is_no_call_of_ours() -> None:
    """Its calls leave less room, and are in none of our numbers; its refusals aren't either."""
    account = Account(replace(_SETTINGS, foreign_share=3.0, foreign_tokens=10), 0)

    charge = account.charge(_CAPPED, 59)

    assert not charge.verdict.admitted
    assert (account.ledger.calls, account.ledger.rejected) == (1, 1)
    assert sum(account.refusals.values()) == 1
    assert account.foreign.rejected > 0
