"""The premium account: its limits, its books, and the other program on its key. Pure; `now` is an argument."""

from collections.abc import Mapping
from math import isinf

import msgspec

from pipeline.sandbox.foreign import ForeignCount, ForeignLoad
from pipeline.sandbox.ledger import Ledger
from pipeline.sandbox.limits import TOKENS, Limits, Verdict
from pipeline.sandbox.settings import Dimension, SandboxSettings


class Charge(msgspec.Struct, frozen=True):
    """A call as it was judged. It keeps the very limits that judged it: after a change they are others."""

    verdict: Verdict
    limits: Limits
    costs: Mapping[Dimension, int]
    at_s: float


class Account:
    """What one key may do.

    Attributes:
        refusals: 429s by reason: the dimension that was short, or `too_large`.
        refunded: tokens given back.
    """

    def __init__(self, settings: SandboxSettings, now: float) -> None:
        self.refusals: dict[str, int] = {}
        self.refunded = 0
        self.ledger = Ledger(requests=settings.rpm, tokens=settings.tpm, window_s=settings.window_s)
        self._foreign_count = ForeignCount()
        self._settings = settings
        self.limits = _limits(settings)
        self._foreign = self._foreign_load(now)

    @property
    def foreign(self) -> ForeignCount:
        """What the other program did; up to date after `advance`."""
        return self._foreign_count

    def change(self, settings: SandboxSettings, now: float) -> None:
        """Go by other settings from now on. The books go on.

        Where limits or their enforcement changed, all budgets are fresh and the worst window is measured anew.
        """
        self.advance(now)
        if _terms(settings) != _terms(self._settings):
            self.limits = _limits(settings)
            self.ledger.measure_anew(requests=settings.rpm, tokens=settings.tpm, window_s=settings.window_s)
        self._settings = settings
        self._foreign = self._foreign_load(now)

    def advance(self, now: float) -> None:
        """Let happen what has happened by `now` without anybody's call."""
        self._foreign.charge_until(self.limits, now)

    def charge(self, costs: Mapping[Dimension, int], now: float) -> Charge:
        """Decide over a call and enter it in the books. Who is admitted must `end` it."""
        self.advance(now)
        verdict = self.limits.charge(costs, now)
        self.ledger.record(now, costs["tpm"], admitted=verdict.admitted)
        if verdict.short is not None:
            reason = "too_large" if isinf(verdict.wait_s) else verdict.short
            self.refusals[reason] = self.refusals.get(reason, 0) + 1
        return Charge(verdict, self.limits, costs, now)

    def end(self, charge: Charge, now: float, *, used: Mapping[Dimension, int] | None = None) -> None:
        """The call is over. What it didn't use is given back, if it told its use and this provider gives back."""
        self.advance(now)
        charge.limits.end_call(now)
        if used is None or not self._settings.refund:
            return
        unused = {name: charge.costs[name] - used[name] for name in TOKENS}
        charge.limits.refund(unused, charge.at_s, now)
        if charge.limits is self.limits:
            self.ledger.refund(unused["tpm"], charge.at_s, now)
        self.refunded += unused["tpm"]

    def _foreign_load(self, now: float) -> ForeignLoad:
        settings = self._settings
        return ForeignLoad(
            share=settings.foreign_share,
            mean_tokens=settings.foreign_tokens,
            limits=settings.limits(),
            window_s=settings.window_s,
            seed=settings.seed,
            start_s=now,
            count=self._foreign_count,
        )


def _terms(settings: SandboxSettings) -> tuple[object, ...]:
    return (settings.enforcement, settings.window_s, settings.seed, settings.limits())


def _limits(settings: SandboxSettings) -> Limits:
    return Limits(settings.enforcement, settings.limits(), settings.window_s, seed=settings.seed)
