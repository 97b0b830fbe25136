"""A request as it travels between stages.

Pure: encodes and decodes, talks to nobody. Everything a later stage needs is in here, so that no stage
looks anything up. Unknown fields are ignored: during a rolling update new writers meet old readers.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tokenweir.keys import CLASSES
from tokenweir.wire import Class

WIRE_VERSION = 1


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One LLM call that a producer asked for, complete and validated.

    Attributes:
        body: OpenAI chat-completions body as JSON: `messages` (always), tools, response_format, ...;
            without `stream`, with exactly one output cap. Never decoded on the way.
        simple: the edge model may answer it. edge: the edge can serve it and hasn't failed at it.
        prompt_tokens: estimate, safe on the high side. output_tokens: cap * n.
        entered_ms: when it came in, Redis time. deadline_ms: never started after it; 0 = none.
        stream: token deltas are wanted. reply_to: name of the client's inbox for them; empty = `reply:<id>`.
        metadata: the producer's JSON object, returned untouched.
        attempt: counts provider calls that may have been paid. replay: counts lives after a dead letter.
    """

    id: str
    body: msgspec.Raw
    tenant: str = "default"
    priority: Class = msgspec.field(default="interactive", name="class")
    task: str = ""
    simple: bool = False
    edge: bool = False
    prompt_tokens: int = 0
    output_tokens: int = 0
    entered_ms: int = 0
    deadline_ms: int = 0
    stream: bool = False
    reply_to: str = ""
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    attempt: int = 1
    replay: int = 0
    v: int = WIRE_VERSION

    @property
    def rank(self) -> int:
        """0 for `interactive`, 1 for `standard`, 2 for `batch`."""
        return CLASSES.index(self.priority)

    @property
    def tokens(self) -> int:
        """What the gate reserves of a token limit."""
        return self.prompt_tokens + self.output_tokens

    def chat(self) -> dict[str, Any]:
        """The chat-completions body, decoded."""
        decoded: dict[str, Any] = msgspec.json.decode(self.body)
        return decoded


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Request)


def encode(request: Request) -> bytes:
    """`request` as the bytes that stand in an entry's `request` field."""
    return _encoder.encode(request)


def decode(raw: bytes) -> Request:
    """The request that stands in an entry's `request` field.

    Raises:
        msgspec.DecodeError: not a request of ours.
    """
    return _decoder.decode(raw)
