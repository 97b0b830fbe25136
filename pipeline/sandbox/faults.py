"""Failures a test can order, each for a number of calls or until it is told otherwise. Pure.

A fault strikes after the limits have admitted and charged the call, as with a real provider: a call that fails was
counted all the same. Calls refused by the limits use up no fault.
"""

from typing import Literal

import msgspec

Side = Literal["premium", "edge"]

KINDS = {
    "status": "status:CODE or status:CODE:ERROR_CODE, an error response",
    "hang": "never answers",
    "cut": "the stream ends in the middle, without a finish; a plain answer loses its second half",
    "reset": "the same, and the connection is torn down",
    "empty_choices": "HTTP 200 without an answer in it",
    "error": "HTTP 200 with an error object, in a stream after the first chunk",
    "html": "HTTP 200 with an HTML page",
    "slow": "slow:SECONDS of the real clock before the first token, on top of the latency",
}


class Fault(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One order.

    Attributes:
        match: part of the prompts that it strikes; None strikes any.
        kind: one of `KINDS`, with its arguments behind colons.
        times: calls it still strikes; None = all, until the orders are cleared.
    """

    kind: str
    match: str | None = None
    times: int | None = 1
    side: Side = "premium"

    def __post_init__(self) -> None:
        name, *arguments = self.kind.split(":")
        if name not in KINDS:
            raise ValueError(f"unknown kind {self.kind!r}; known: {', '.join(KINDS)}")
        if name == "status" and not (arguments and arguments[0].isdecimal() and 400 <= int(arguments[0]) <= 599):
            raise ValueError(f"kind {self.kind!r} needs a status from 400 to 599")
        if name == "slow" and not (arguments and arguments[0].replace(".", "", 1).isdecimal()):
            raise ValueError(f"kind {self.kind!r} needs seconds")

    @property
    def name(self) -> str:
        return self.kind.partition(":")[0]

    @property
    def status(self) -> int:
        return int(self.kind.split(":")[1])

    @property
    def code(self) -> str | None:
        return self.kind.split(":")[2] if self.kind.count(":") > 1 else None

    @property
    def delay_s(self) -> float:
        return float(self.kind.split(":")[1]) if self.name == "slow" else 0.0


class Faults:
    """The orders, struck in the order in which they came."""

    def __init__(self) -> None:
        self.ordered: list[Fault] = []

    def take(self, side: Side, prompt: str) -> Fault | None:
        """The fault that this call suffers, used up by one; None when it goes well."""
        for fault in self.ordered:
            if fault.side == side and (fault.match is None or fault.match in prompt):
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times <= 0:
                        self.ordered.remove(fault)
                return fault
        return None
