"""Every key name of a pool.

All keys of a pool carry the hash tag `{pool}`, so they live in one cluster slot and one script can
touch them together. Names come from configuration only, never from the content of a request; the two
kinds that hold a request's own id (`status:`, `reply:`) only ever extend the pool's prefix.
"""

from __future__ import annotations

import re
from typing import Final

CLASSES: Final = ("interactive", "standard", "batch")
# Lanes of the two stages that sort by class, in rank order. Each lane is one stream.
INGEST_LANES: Final = ("ingest", "ingest:batch")
GATE_LANES: Final = tuple(f"gate:{name}" for name in CLASSES)
# Streams whose deliveries end in a model's answer.
MODEL_LANES: Final = ("premium", "edge")
# Stream -> name of its consumer group (the stage that reads it).
GROUPS: Final[dict[str, str]] = {
    **dict.fromkeys(INGEST_LANES, "classify"),
    **dict.fromkeys(GATE_LANES, "gate"),
    "premium": "premium",
    "edge": "edge",
    "deferred": "deferred",
}
# Keys that live for ever: limits and budgets (quiet spells are no cold start), streams with their groups, and
# `closed` (a drained pool stays so until it is opened). Everything else has a TTL or is emptied by work; the test
# kit fails on any other key.
PERMANENT: Final = ("limits", "budget:*", "responses", "dead", "closed", *GROUPS)

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_ID = re.compile(r"[\x21-\x7e]{1,128}\Z")


def valid_id(text: str) -> bool:
    """Whether `text` can be a request id: 1 to 128 visible ASCII characters."""
    return _ID.match(text) is not None


class Keys:
    """Names the keys of one pool.

    Raises:
        ValueError: the pool or prefix holds characters that could break out of the hash tag.
    """

    def __init__(self, pool: str = "main", *, prefix: str = "tokenweir") -> None:
        if not _NAME.match(pool) or not _NAME.match(prefix):
            raise ValueError(f"pool and prefix may hold letters, digits, '_', '.', '-' only: {prefix!r}, {pool!r}")
        self.pool = pool
        self.root = f"{prefix}:{{{pool}}}:"

    def key(self, name: str) -> str:
        """The full key of `name`, e.g. `ingest` -> `tokenweir:{main}:ingest`."""
        return self.root + name

    def status(self, request_id: str) -> str:
        """The hash with a request's state, timings and result."""
        return f"{self.root}status:{request_id}"

    def reply(self, request_id: str) -> str:
        """The stream of token deltas of a request that asked for them."""
        return f"{self.root}reply:{request_id}"

    def inbox(self, name: str) -> str:
        """The stream on which one client process gets its deltas and results."""
        return f"{self.root}inbox:{name}"

    def inbox_name(self, key: str) -> str | None:
        """The inbox's own part of `key`, or None when `key` is no inbox of this pool."""
        name = key.removeprefix(f"{self.root}inbox:")
        return name if name != key and _NAME.match(name) else None
