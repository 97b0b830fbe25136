"""How long a provider wants us to wait, in whichever of its many dialects it says so.

Pure. What can't be read is ignored, never taken for 0: a wait of nothing would invite the next 429.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

# A daily limit is the longest that providers have; anything beyond is a mistake of theirs.
LONGEST_S: Final = 86_400.0

_LONGEST_TEXT = 64
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNIT = r"milliseconds?|seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|ns|us|µs|μs|ms|s|m|h|d"
_PART = rf"[0-9]+(?:\.[0-9]+)?\s?(?:{_UNIT})(?![a-z])"
_part = re.compile(rf"([0-9]+(?:\.[0-9]+)?)\s?({_UNIT})(?![a-z])")
_duration = re.compile(rf"(?:{_PART}\s?)+")
# How almost all providers write it, in one look: every response carries two or more of these.
_usual = re.compile(r"(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s))?")
_number = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?")
_weekday = re.compile(r"(?:mon|tue|wed|thu|fri|sat|sun)", re.IGNORECASE)
_said = re.compile(rf"(?:again in|retry in|retry after)\s((?:{_PART}\s?)+)", re.IGNORECASE)
_protobuf = re.compile(r'"retryDelay"\s?:\s?"([0-9.]{1,20}s)"')

# Plain numbers from here on can't be a wait: they are points in time, in seconds or in milliseconds.
_EPOCH_S: Final = 1e9
_EPOCH_MS: Final = 1e12


def wait_s(text: str, *, now_s: float) -> float | None:
    """Seconds that `text` asks for, at most `LONGEST_S`, or None where it says nothing usable.

    Reads Go durations (`6m0s`), plain seconds, RFC 3339, HTTP dates, and Unix time in s or ms.

    Args:
        now_s: Unix time; a moment before it says nothing.
    """
    text = text.strip()
    if not text or len(text) > _LONGEST_TEXT:
        return None
    if usual := _usual.fullmatch(text):
        hours, minutes, rest, unit = usual.groups()
        total = int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(rest or 0) * (0.001 if unit == "ms" else 1)
        return min(total, LONGEST_S)
    if _number.fullmatch(text):
        value = float(text)
        if value < _EPOCH_S:
            return min(value, LONGEST_S)
        return _until(value / 1000 if value >= _EPOCH_MS else value, now_s)
    return _spoken(text) if _duration.fullmatch(text.lower()) else _until(_moment_s(text), now_s)


def retry_after_s(headers: Mapping[str, str], text: str, *, limit: str = "", now_s: float) -> float | None:
    """Seconds after which a refused call may be repeated, or None where the provider doesn't say.

    What is meant for this request (`retry-after-ms`, `retry-after`, the words of the error) comes before the
    reset headers, which tell when a whole limit is full again. Of these the later one counts, unless the
    error names the limit.

    Args:
        headers: of the response, names in lower case. text: the raw error body.
        limit: the limit that the error names, `requests` or `tokens`; empty = not known.
        now_s: Unix time, best the provider's own (`clock_s`).
    """
    milliseconds = headers.get("retry-after-ms", "").strip()
    if _number.fullmatch(milliseconds):
        return min(float(milliseconds) / 1000, LONGEST_S)
    stated = wait_s(headers.get("retry-after", ""), now_s=now_s)
    if stated is not None:
        return stated
    found = _said.search(text) or _protobuf.search(text)
    if found:
        return _spoken(found.group(1))
    resets = {
        name: wait
        for name in ("requests", "tokens")
        if (wait := wait_s(headers.get(f"x-ratelimit-reset-{name}", ""), now_s=now_s)) is not None
    }
    if limit in resets:
        return resets[limit]
    return max(resets.values(), default=wait_s(headers.get("x-ratelimit-reset", ""), now_s=now_s))


def clock_s(headers: Mapping[str, str], *, default_s: float) -> float:
    """The provider's own time, by which its dates are meant; `default_s` where it doesn't tell."""
    moment = _moment_s(headers.get("date", ""))
    return default_s if moment is None else moment


def _spoken(text: str) -> float | None:
    """The sum of `1m 26.4s` or `2 minutes`."""
    total = sum(float(number) * _unit_s(unit) for number, unit in _part.findall(text.lower()))
    return min(total, LONGEST_S) if math.isfinite(total) else None


def _unit_s(unit: str) -> float:
    if unit in _SECONDS:
        return _SECONDS[unit]
    if unit.startswith("d"):
        return LONGEST_S
    if unit.startswith("h"):
        return 3600.0
    if unit.startswith("milli"):
        return 1e-3
    return 60.0 if unit.startswith("min") else 1.0


def _moment_s(text: str) -> float | None:
    """Unix time of an RFC 3339 or HTTP date."""
    try:
        moment = parsedate_to_datetime(text) if _weekday.match(text) else datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp()
    except (ValueError, OverflowError, IndexError, TypeError):
        return None


def _until(moment_s: float | None, now_s: float) -> float | None:
    if moment_s is None or moment_s <= now_s:
        return None
    return min(moment_s - now_s, LONGEST_S)
