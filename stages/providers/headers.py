"""What a provider's response headers say of the limits of a key.

Pure. Every call brings them, so only those we know are looked at. What can't be read leaves its reading out: a 0 in
its place would close the deployment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pipeline.outcome import Reading
from stages.providers import waits

# More digits than these no limit has.
_MOST_DIGITS: Final = 12
_LIMITS: Final = {"requests": "rpm", "tokens": "tpm", "input-tokens": "itpm", "output-tokens": "otpm"}
_OF, _LEFT, _RESET = range(3)
_PARTS: Final = {"limit": _OF, "remaining": _LEFT, "reset": _RESET}
# OpenAI's dialect, which Groq, Azure and most others speak, and Anthropic's: name -> (our limit, which part of it).
_known = {
    form.format(part=part, of=of).encode(): (limit, index)
    for form in ("x-ratelimit-{part}-{of}", "anthropic-ratelimit-{of}-{part}")
    for part, index in _PARTS.items()
    for of, limit in _LIMITS.items()
}.get


def readings(headers: Sequence[tuple[bytes, bytes]], *, now_s: float) -> list[Reading]:
    """One reading for each limit of which the headers tell how much there is, and how much of it is left.

    A limit without its size (Azure) has no reading. Nor has one whose reset can't be read: its window is unknown.

    Args:
        headers: raw names and values, names in any case.
        now_s: Unix time; the provider's own is taken where the headers tell it and a reset is a date.
    """
    found: dict[str, list[bytes]] = {}
    for (limit, part), value in [(known, value) for name, value in headers if (known := _known(name.lower()))]:
        if limit not in found:
            found[limit] = [b"", b"", b""]
        found[limit][part] = value
    read = []
    for limit, (of, left, reset) in found.items():
        # Digits only: a sign, a fraction or a word is nothing to count with.
        if not (of.isdigit() and left.isdigit()) or len(of) > _MOST_DIGITS or len(left) > _MOST_DIGITS:
            continue
        size, rest = int(of), int(left)
        reset_s = _reset_s(reset.decode("latin-1"), headers, now_s) if reset else 0.0
        if reset_s is not None and size and rest <= size:
            read.append(Reading(limit, rest, size, reset_s))
    return read


def _reset_s(text: str, headers: Sequence[tuple[bytes, bytes]], now_s: float) -> float | None:
    if "T" in text:
        date = next((value for name, value in headers if name.lower() == b"date"), b"")
        now_s = waits.clock_s({"date": date.decode("latin-1")}, default_s=now_s)
    return waits.wait_s(text, now_s=now_s)
