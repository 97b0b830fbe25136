"""In which order waiting requests go: the backlog's score. Pure."""

from __future__ import annotations

from typing import Final

from pipeline.message import Request

# By how many windows of age a class gives way to `interactive`, by rank. A batch request that has waited
# ten windows longer goes before a fresh interactive one: linear ageing, so nothing starves, and a score
# never changes once it is given.
GIVES_WAY_WINDOWS: Final = (0.0, 1.0, 10.0)


def score(request: Request, *, window_s: float) -> float:
    """The place of `request` in the backlog: milliseconds, lower goes first."""
    return request.entered_ms + GIVES_WAY_WINDOWS[request.rank] * window_s * 1000
