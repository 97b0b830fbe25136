"""The ways in which providers enforce limits, and what each preset claims to withstand. Plain data."""

from __future__ import annotations

from typing import Final, cast, get_args

from pipeline.sandbox.settings import Enforcement as Mode
from tokenweir.terms import Enforcement as Preset

MODES: Final = cast("tuple[Mode, ...]", get_args(Mode))

# The preset that fits each mode best.
FITTING: Final[dict[Mode, Preset]] = {
    "bucket": "continuous",
    "bucket/6": "auto",
    "sliding": "auto",
    "fixed": "auto",
    "10s": "quantised:10s",
    "1s": "quantised:1s",
}
# What each preset is safe against, as the documentation says it.
CLAIMED: Final[dict[Preset, tuple[Mode, ...]]] = {
    "auto": ("sliding", "fixed", "bucket", "bucket/6"),
    "continuous": ("bucket", "sliding", "fixed"),
    "quantised:10s": ("10s", "sliding", "fixed", "bucket", "bucket/6"),
    "quantised:1s": ("1s", "10s", "sliding", "fixed", "bucket", "bucket/6"),
}
