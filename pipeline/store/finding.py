"""What a look at something brought."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """One thing that was looked at: `ok`, `warn` (works, but not as it should) or `FAIL`, and what mends it."""

    mark: Literal["ok", "warn", "FAIL"]
    about: str
    text: str
    cure: str = ""
