"""What an operator types to change limits, understood and checked. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, cast, get_args

import msgspec

from pipeline.cli.parser import UsageError
from tokenweir.terms import DAY_LIMITS, WINDOW_LIMITS, Allowed, Settlement, Terms, terms

Value = int | str | None
_LIMITS: Final = (*WINDOW_LIMITS, *DAY_LIMITS)
_NAMES: Final = (*_LIMITS, "max_in_flight", "settlement")
_SETTLEMENTS: Final[tuple[str, ...]] = get_args(Settlement)
# These are the workers' too, which read them at their start.
_OF_THE_FILE: Final = ("window_s", "send_within_s", "enforcement", "day_resets_at")
_NONE: Final = "none"
# Beyond it numbers are no longer exact in the gate's arithmetic.
_MOST: Final = 10**12


class Wanted(NamedTuple):
    """The deployment that was named, or empty, and the new values by name; None takes a limit away."""

    deployment: str
    values: dict[str, Value]


def wanted(words: Sequence[str]) -> Wanted:
    """What `primary rpm=400 tpm=none` asks for.

    Raises:
        UsageError: an unknown name or value, with the nearest known one.
    """
    names = [word for word in words if "=" not in word]
    if len(names) > 1:
        raise UsageError(f"one deployment at a time, not {names[0]!r} and {names[1]!r}; values are given as NAME=VALUE")
    values: dict[str, Value] = {}
    for word in words:
        if "=" in word:
            name, _, text = word.partition("=")
            if name in values:
                raise UsageError(f"{name} is given twice")
            values[name] = _value(name, text.strip())
    return Wanted(names[0] if names else "", values)


def chosen(name: str, deployments: Iterable[str]) -> str:
    """The deployment that `name` means; without a name the only one there is.

    Raises:
        UsageError: there is no such deployment, or no telling which.
    """
    known = list(deployments)
    if name in known:
        return name
    if name:
        raise UsageError(f"no deployment {name!r}{_nearest(name, known)}; there are: {', '.join(known)}")
    if len(known) == 1:
        return known[0]
    raise UsageError(f"which deployment? there are: {', '.join(known)}")


def changed(before: Terms, values: Mapping[str, Value]) -> Terms:
    """The terms with these values in the place of the old ones.

    Raises:
        UsageError: no limit would be left.
    """
    old = before.allowed
    limits = {name: values.get(name, old.limits.get(name)) for name in _LIMITS}
    left = {name: limit for name, limit in limits.items() if isinstance(limit, int)}
    if not left:
        raise UsageError(f"the last limit can't be taken away; set another one first: {', '.join(_LIMITS)}")
    new = msgspec.structs.replace(
        old,
        limits=left,
        max_in_flight=cast("int | None", values.get("max_in_flight", old.max_in_flight)),
        settlement=cast("Settlement", values.get("settlement", old.settlement)),
    )
    return terms(new)


def differences(before: Terms, after: Terms) -> list[tuple[str, str, str]]:
    """What differs, as (name, before, after) for people."""
    old, new = _flat(before.allowed), _flat(after.allowed)
    return [(name, old[name], new[name]) for name in new if old[name] != new[name]]


def _flat(allowed: Allowed) -> dict[str, str]:
    """Every value by its name."""
    counts = {**dict.fromkeys(_LIMITS), **allowed.limits, "max_in_flight": allowed.max_in_flight}
    shown = {name: _NONE if count is None else f"{count:,}" for name, count in counts.items()}
    return {
        **shown,
        "settlement": allowed.settlement,
        "enforcement": allowed.enforcement,
        "window_s": f"{allowed.window_s:g}",
        "send_within_s": f"{allowed.late_s:g}",
        "day_resets_at": allowed.day_resets_at or _NONE,
    }


def _value(name: str, text: str) -> Value:
    if name in _OF_THE_FILE:
        raise UsageError(f"{name} is set in the configuration file, and takes a restart of the workers")
    if name not in _NAMES:
        raise UsageError(f"no limit {name!r}{_nearest(name, _NAMES)}; known: {', '.join(_NAMES)}")
    if name == "settlement":
        if text not in _SETTLEMENTS:
            known = ", ".join(_SETTLEMENTS)
            raise UsageError(f"settlement can't be {text!r}{_nearest(text, _SETTLEMENTS)}; known: {known}")
        return text
    if text == _NONE:
        return None
    digits = text.replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdecimal()):
        raise UsageError(f"{name}={text}: not a whole number{_nearest(text, (_NONE,))}; `{name}=none` takes it away")
    if not 1 <= int(digits) <= _MOST:
        raise UsageError(f"{name}={text}: must be from 1 to {_MOST:,}; `{name}=none` takes it away")
    return int(digits)


def _nearest(text: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(text, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
