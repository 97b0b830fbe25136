"""One account in virtual time, and what a load met with there."""

from __future__ import annotations

from typing import Any

import msgspec

from pipeline.plan.gate import Room
from pipeline.plan.loads import Profile, loads
from pipeline.plan.proof import Case, Result, play
from pipeline.sandbox.settings import Enforcement as Mode
from tokenweir.terms import Allowed

ALLOWED = Allowed(limits={"rpm": 500, "tpm": 30_000})


def case(*, room: Room | None = None, minutes: float = 5, **settings: Any) -> Case:
    """500 requests and 30,000 tokens a minute, and twelve workers; `settings` are the account's or the case's."""
    own = {name: settings.pop(name) for name in tuple(settings) if name not in Allowed.__struct_fields__}
    allowed = [msgspec.structs.replace(ALLOWED, **settings)]
    return Case(allowed=allowed, room=room or Room(premium=192), length_s=minutes * 60, **own)


def played(
    case: Case, mode: Mode, profile: Profile | None, *, bound: str = "", largest_share: float = 0.02
) -> list[Result]:
    """What the loads of a profile met with, or that one which is to reach the limit `bound`."""
    chosen = loads(profile, case.allowed, largest_share=largest_share, seed=case.seed)
    return [
        play(case, mode, load, progress=lambda _seconds: None) for load in chosen if not bound or load.bound == bound
    ]
