"""What a stage can decide, as values.

A stage returns one of these for each delivery; the stage loop writes it to Redis, in batches, one script
a kind. A new outcome doesn't type-check until the loop handles it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from pipeline.message import Request
from tokenweir.errors import ErrorCode
from tokenweir.wire import Class, Result


class Forward(msgspec.Struct, frozen=True, kw_only=True):
    """Hand the request over to the stream `to`. `claims`: this entry is the first to carry its id, or is dropped."""

    request: Request
    to: str
    claims: bool = False


class Admit(msgspec.Struct, frozen=True, kw_only=True):
    """Let the gate script decide: premium, edge, backlog, or a permanent no."""

    request: Request


class Used(NamedTuple):
    """Tokens that a call used, of the prompt and of the output, as its provider counted them."""

    prompt: int
    output: int


class Reading(NamedTuple):
    """What a provider's headers say of one limit (`rpm`, `tpm`, `itpm`, `otpm`).

    `left` of `of` when it counted the call, and all of it again in `reset_s`; 0 = it didn't say.
    """

    limit: str
    left: int
    of: int
    reset_s: float


class Failure(NamedTuple):
    """Why a call brought no answer, and what that means for its deployment.

    `pause_s` > 0 closes it for everybody that long. `limited`: the provider said 429 for our rate, so that our
    numbers are too high; else it was for its key or its quota.
    """

    reason: str
    pause_s: float = 0
    limited: bool = False


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The terminal result, with its request's class and whether deltas were wanted.

    `used` settles the grant; None = unknown, the reservation stands. `failure`: of the last call, where it failed.
    """

    result: Result
    priority: Class = "interactive"
    stream: bool = False
    used: Used | None = None
    failure: Failure | None = None


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Try again: into the backlog, not before `wait_s` from now. `request` carries the next attempt number."""

    request: Request
    failure: Failure
    wait_s: float = 0


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """A granted call that wasn't made in time: its charge is undone, and it waits for another grant."""

    request: Request


class Dead(msgspec.Struct, frozen=True, kw_only=True):
    """No further attempt: the whole entry goes to `dead`, the caller gets a typed error.

    `request_id` may be empty when none can be read; then the entry id stands for it.
    """

    reason: str
    message: str
    code: ErrorCode = "dead_letter"
    request_id: str = ""


class Leave(msgspec.Struct, frozen=True, kw_only=True):
    """Leave it pending: another delivery follows after the lease, and only deliveries count."""

    reason: str


class PassOn(msgspec.Struct, frozen=True, kw_only=True):
    """Leave it to another worker, which may take it at once; this delivery didn't count."""


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """A notice for the backlog: serve what fits now, and come back at the time the script says."""


Outcome = Forward | Admit | Done | Retry | Late | Dead | Leave | PassOn | Drain
