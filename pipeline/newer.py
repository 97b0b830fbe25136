"""What becomes of entries that a newer release wrote: they are left to its workers, though not for ever.

A delivery that ends so isn't counted, and the entry is free for others at once; the next look for abandoned entries
is the delay that keeps workers of this release from passing it round in a hot loop.
"""

from __future__ import annotations

import time

import msgspec
import structlog

from pipeline.message import WIRE_VERSION, NewerVersion, is_newer
from pipeline.outcome import Dead, PassOn
from pipeline.stage import Delivery

log = structlog.get_logger()

# So many leases (ten minutes by default) an entry that came by is waited for. Only in a roll-back, or with a version
# that never was, nobody comes; then its caller gets an answer, and `dead` keeps it for the day on which somebody does.
PATIENCE_LEASES = 20


def newer(delivery: Delivery) -> bool:
    """Whether workers of a newer release must find out what to do with it."""
    try:
        return delivery.request.v > WIRE_VERSION
    except NewerVersion:
        return True
    except (KeyError, msgspec.DecodeError):
        return is_newer(delivery.fields.get(b"v", b"").decode(errors="replace"))


class Newer:
    """Remembers, for one stage in one process, which entries of newer releases came by, and since when."""

    def __init__(self, *, lease_s: float) -> None:
        self._patience_s = PATIENCE_LEASES * lease_s
        self._met: dict[tuple[str, str], float] = {}  # by lane and entry: when first (monotonic)

    def outcome(self, delivery: Delivery, error: NewerVersion) -> PassOn | Dead:
        """To others, or to `dead` when it has come by for too long."""
        now, place = time.monotonic(), (delivery.lane, delivery.entry_id)
        if not self._met:
            log.warning("newer_version_met", lane=delivery.lane, effect="left to workers of that release")
        self._met = {known: at for known, at in self._met.items() if now - at < 2 * self._patience_s}
        if now - self._met.setdefault(place, now) < self._patience_s:
            return PassOn()
        message = "no worker here speaks its version (field `v`); run the newer release, then replay it"
        return Dead(reason="newer_version", message=message, request_id=error.request_id)
