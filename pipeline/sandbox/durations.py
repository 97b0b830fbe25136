"""Durations as OpenAI's headers and messages write them. Pure."""

import math


def go_duration(seconds: float) -> str:
    """Like `120ms`, `8.64s` or `6m0s`, rounded up to a millisecond: a caller who waits that long isn't too early."""
    ms = whole_ms(seconds)
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    minutes, ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    rest = f"{ms / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{rest}"
    return f"{minutes}m{rest}" if minutes else rest


def whole_ms(seconds: float) -> int:
    """Rounded up, but for what floating point added."""
    return math.ceil(round(seconds * 1000, 3))
