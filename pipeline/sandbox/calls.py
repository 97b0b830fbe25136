"""The calls one by one, newest hundred thousand: so a test can ask how often a request reached the provider. Pure."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Literal

import msgspec

from pipeline.sandbox.faults import Side

_KEPT = 100_000
_PROMPT_SHOWN = 60

Fate = Literal["open", "answered", "refused", "invalid", "fault", "gone"]


class Call(msgspec.Struct, kw_only=True):
    """One HTTP call to a model.

    Attributes:
        seq: counted from 1 over both sides.
        at_s: arrival on the sandbox's clock.
        prompt: its last text, cut to 60 characters; `prompt_hash` (SHA-256, 16 hex digits) is of all its
            texts, joined by newlines.
        tokens: what it was charged: prompt + cap * n; for edge calls what it may use at most.
        status: of the response once it was handed over whole, else 0.
        end_s: when it ended, on the same clock; 0 while it is open.
        fate: open, answered in full, refused by the limits, invalid, struck by a fault, or gone: its caller hung up.
    """

    seq: int
    side: Side
    at_s: float
    prompt: str = ""
    prompt_hash: str = ""
    tokens: int = 0
    stream: bool = False
    status: int = 0
    end_s: float = 0
    fate: Fate = "open"

    def describe(self, prompt: str, *, last_text: str, tokens: int, stream: bool) -> None:
        """Enter what a readable body says."""
        self.prompt = last_text[:_PROMPT_SHOWN]
        self.prompt_hash = hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self.tokens = tokens
        self.stream = stream


class CallLog:
    """Calls in the order of arrival. `clock` tells when they end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._calls: deque[Call] = deque(maxlen=_KEPT)
        self._open: dict[int, Call] = {}
        self._seq = 0
        self.fates: dict[Side, dict[str, int]] = {"premium": {}, "edge": {}}

    def open(self, side: Side, at_s: float) -> Call:
        """A new call, entered before anything about it is known."""
        self._seq += 1
        call = Call(seq=self._seq, side=side, at_s=at_s)
        self._calls.append(call)
        self._open[call.seq] = call
        return call

    def close(self, call: Call, fate: Fate) -> None:
        """Enter how it ended. The first end counts, and only of calls that this log opened: after a reset those in
        flight belong to a log that is gone."""
        if self._open.get(call.seq) is call:
            del self._open[call.seq]
            call.fate, call.end_s = fate, self._clock()
            fates = self.fates[call.side]
            fates[fate] = fates.get(fate, 0) + 1

    def still_open(self, side: Side) -> int:
        """Calls without an end."""
        return sum(call.side == side for call in self._open.values())

    def since(self, seq: int, most: int) -> Iterator[Call]:
        """Up to `most` calls numbered `seq` and later."""
        oldest = self._calls[0].seq if self._calls else seq
        start = max(0, seq - oldest)
        return islice(self._calls, start, start + most)
