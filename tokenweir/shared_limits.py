"""The limits of a pool as they stand in Redis: found there, or put there, by whoever asks for budget alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from lua import load
from tokenweir.connection import Argument, Connection, insist
from tokenweir.errors import ConfigError, StoreUnavailable
from tokenweir.keys import valid_id
from tokenweir.terms import DAY_LIMITS, WINDOW_LIMITS, Allowed, seed_row, terms

_RESERVE, _SEED, _REPORT = load("budget_reserve"), load("limits_seed"), load("budgets_report")
_LIMITS: Final = (*WINDOW_LIMITS, *DAY_LIMITS)


class _Limit(msgspec.Struct):
    name: str


class _Terms(msgspec.Struct):
    """What we need of a deployment's terms, whoever wrote them."""

    limits: tuple[_Limit, ...]
    start_within_us: int


class _Figures(msgspec.Struct, array_like=True):
    """What stood in a budget."""

    at_us: int
    limits: tuple[tuple[str, float, float, float], ...]  # name, all charges ever, those of the window, level


class _Reply(msgspec.Struct, array_like=True):
    """What the reserve script answers: lists by deployment, but for `answers`, which go by call."""

    start_within_us: list[float]
    times_us: list[int]
    answers: list[int]
    lives: list[tuple[str, int]]
    figures: list[_Figures]


_read: Final = msgspec.msgpack.Decoder(_Reply).decode


class SharedLimits:
    """The deployments of a pool, and scripts on their budgets.

    Args:
        given: by deployment, the limits to put in place where none are; None = those that are there.
        only: the deployments to use; None = all.
    """

    def __init__(
        self, connection: Connection, given: Mapping[str, Allowed] | None, only: Iterable[str] | None = None
    ) -> None:
        self._connection = connection
        self._given = given
        self._only = frozenset(only) if only is not None else None
        self._opening = asyncio.Lock()
        self._budgets: tuple[str, ...] = ()
        self._memory: _Reply | None = None  # the last one
        self._keys: dict[str, tuple[str, ...]] = {}  # those of the reserve script, by limiter
        self.deployments: tuple[str, ...] = ()
        self.call_within_s: list[float] = []  # by deployment: from a grant to the start of its call
        self.counts_tokens = False
        self.splits_tokens = False  # prompt and output have limits of their own

    async def open(self) -> None:
        """Put the given limits in place and learn which deployments there are; once, harmless again.

        Raises:
            ConfigError: there are no limits, or not for a deployment that was asked for.
            StoreUnavailable: Redis doesn't answer or refuses.
        """
        async with self._opening:
            if self.deployments:
                return
            if self._given is not None:
                await insist(self._seed)
            found = await insist(self._read)
            wanted = self._only if self._only is not None else found.keys()
            if missing := sorted(set(wanted) - found.keys()) or (not found and ["any deployment"]):
                raise ConfigError(
                    f"pool {self._connection.keys.pool!r} has no limits in Redis for {missing[0]}: "
                    "start a worker of it first, or pass limits="
                )
            self._learn({name: found[name] for name in sorted(wanted)})

    async def ask(self, limiter: str, args: Sequence[Argument]) -> tuple[list[int], list[int]]:
        """Run the reserve script: the time of the grants by deployment (us), and the answers.

        Redis may have been emptied: limits that were given are put in place again.

        Raises:
            StoreUnavailable: no reply, or an error: whether it ran is unknown. It may be asked again as it is.
        """
        if (keys := self._keys.get(limiter)) is None:
            bind = {"<limiter>": self._connection.keys.key(limiter)}
            keys = self._keys[limiter] = self._connection.names(_RESERVE, bind=bind, rest=self._budgets)
        try:
            text = await self._connection.run_on(keys, _RESERVE, args)
        except StoreUnavailable as error:
            if "NOLIMITS" not in str(error):
                raise
            if self._given is None:
                raise StoreUnavailable(
                    f"the limits of pool {self._connection.keys.pool!r} have gone from Redis: "
                    "a worker of it puts them there when it works, or pass limits="
                ) from error
            await self._seed()
            text = await self._connection.run_on(keys, _RESERVE, args)
        reply = _read(text)
        if self._memory and self._memory.lives != reply.lives:
            await self._tell(self._memory)
        self._memory = reply
        # Operators may change it at any time.
        self.call_within_s = [within_us / 1e6 for within_us in reply.start_within_us]
        return reply.times_us, reply.answers

    async def _tell(self, known: _Reply) -> None:
        """Another server, or an emptied one, has answered: tell it what the former one knew of the budgets."""
        args: list[Argument] = []
        for name, (server, born), figures in zip(self.deployments, known.lives, known.figures, strict=True):
            for limit, cum, used, level in figures.limits:
                args += ("seen", name, limit, born, cum, used, level, figures.at_us, server)
        await self._connection.run(_REPORT, args, rest=self._budgets)

    async def _seed(self) -> None:
        args: list[Argument] = []
        for name, allowed in (self._given or {}).items():
            args += seed_row(name, terms(allowed))
        await self._connection.run(_SEED, args, rest=[f"budget:{name}" for name in self._given or {}])

    async def _read(self) -> dict[str, _Terms]:
        fields = await self._connection.command("HGETALL", self._connection.keys.key("limits"))
        texts = {name.decode(): text for name, text in fields.items() if b"@" not in name}
        return {name: msgspec.json.decode(text, type=_Terms) for name, text in texts.items()}

    def _learn(self, found: Mapping[str, _Terms]) -> None:
        names = {limit.name for terms_ in found.values() for limit in terms_.limits}
        self.counts_tokens = not names <= {"rpm", "rpd"}
        self.splits_tokens = bool(names & {"itpm", "otpm"})
        self.call_within_s = [terms_.start_within_us / 1e6 for terms_ in found.values()]
        self._budgets = tuple(f"budget:{name}" for name in found)
        self.deployments = tuple(found)


def as_allowed(limits: Mapping[str, Mapping[str, Any]]) -> dict[str, Allowed]:
    """What is allowed by deployment, from `{"primary": {"rpm": 500, "tpm": 30_000, "window_s": 60}}`.

    Raises:
        ConfigError: an unknown name, or a value that can't be.
    """
    found = {}
    for name, fields in limits.items():
        try:
            if not valid_id(name) or set(name) & set("@:{}"):
                raise ValueError("a deployment's name may not hold spaces, '@', ':', '{' or '}'")
            given = {key: value for key, value in fields.items() if value is not None}
            amounts = {key: given.pop(key) for key in _LIMITS if key in given}
            found[name] = msgspec.convert({**given, "limits": amounts}, Allowed)
            terms(found[name])
        except (ValueError, TypeError, ArithmeticError) as error:
            raise ConfigError(f"limits of {name!r}: {error}") from error
    if not found:
        raise ConfigError("limits= names no deployment")
    return found
