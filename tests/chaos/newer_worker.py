"""`tokenweir run` of a release to come: its requests carry a field more, and some of them have version 2.

Its classify stage writes the field `hint`; a request whose task is `v2` also gets version 2, in which `body` may not be
used as it stands: whoever calls with it has understood half of it. Its calling stages refuse to work without the hint.
The statuses and the entries that it writes carry a field more, too.
"""

from __future__ import annotations

from typing import Any

import msgspec

import pipeline.message
import stages
from pipeline.outcome import Forward, Outcome
from pipeline.stage import Delivery, Stage
from stages.classify import Classify
from stages.edge import EdgeCall
from stages.premium import Premium
from tests.chaos.worker import run

VERSION = 2
HALF_MEANING = "[half a meaning]"


class NewerClassify(Classify):
    """Adds what its own release knows, and understands version 2 of a producer's entry."""

    async def handle(self, delivery: Delivery) -> Outcome:
        outcome = await super().handle(msgspec.structs.replace(delivery, fields=_as_version_1(delivery.fields)))
        if not isinstance(outcome, Forward):
            return outcome
        request = outcome.request
        hint = msgspec.json.encode({"for": request.id})
        if request.task == "v2":
            body = msgspec.json.encode({"messages": [{"role": "user", "content": HALF_MEANING}]})
            more = {"hint": msgspec.Raw(hint), "body2": request.body}
            changed = msgspec.structs.replace(request, v=VERSION, body=msgspec.Raw(body), rest=more)
        else:
            changed = msgspec.structs.replace(request, rest={"hint": msgspec.Raw(hint)})
        return Forward(request=changed, to=outcome.to, claims=outcome.claims)


def _as_version_1(fields: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {name: value for name, value in fields.items() if name != b"v"}


def _understood(delivery: Delivery) -> Delivery:
    """The delivery as this release means it; the hint must have come through every stage on the way."""
    request = delivery.request
    if request.rest and msgspec.json.decode(request.rest["hint"]) != {"for": request.id}:
        raise AssertionError(f"the hint of {request.id} was spoilt")
    if request.v < VERSION:
        return delivery
    meant = msgspec.structs.replace(request, body=request.rest["body2"])
    return msgspec.structs.replace(delivery, fields=delivery.fields | {b"request": pipeline.message.encode(meant)})


class NewerPremium(Premium):
    async def handle(self, delivery: Delivery) -> Outcome:
        return await super().handle(_understood(delivery))


class NewerEdge(EdgeCall):
    async def handle(self, delivery: Delivery) -> Outcome:
        return await super().handle(_understood(delivery))


def build(pool: Any, keys: Any, **more: Any) -> list[Stage]:
    """The usual stages, in their next version."""
    found = stages.build(pool, keys, **more)
    newer = {Classify: NewerClassify, Premium: NewerPremium, EdgeCall: NewerEdge}
    for stage in found:
        if type(stage) in newer:
            stage.__class__ = newer[type(stage)]
    return found


def main() -> int:
    """Run workers until told to stop."""
    pipeline.message.WIRE_VERSION = VERSION
    return run(build)


if __name__ == "__main__":
    raise SystemExit(main())
