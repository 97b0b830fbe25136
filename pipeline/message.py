"""A request as it travels between stages.

Pure: encodes and decodes, talks to nobody. Everything a later stage needs is in here, so that no stage
looks anything up. During a rolling update newer writers meet older readers: fields that aren't known here are
kept and passed on, and a newer version is refused (`NewerVersion`), so that nothing is done with half its meaning.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from tokenweir.keys import CLASSES
from tokenweir.wire import Class

WIRE_VERSION = 1
T = TypeVar("T")


def is_newer(version: str) -> bool:
    """Whether `version`, as it stands in an entry's `v`, is one of a newer release."""
    return version.isascii() and version.isdigit() and len(version) < 5 and int(version) > WIRE_VERSION


class NewerVersion(msgspec.DecodeError):
    """A newer release wrote it, for workers that know what it means. `request_id` is empty where it can't be read."""

    def __init__(self, request_id: str = "") -> None:
        super().__init__("it has a newer version than is spoken here")
        self.request_id = request_id


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
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
        rest: what a newer release added, by name; for it alone.
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
    # Never written under a name of its own; a field that is called `rest` is one of a newer release like any other.
    rest: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict, name="")

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
_shallow = msgspec.json.Decoder(dict[str, msgspec.Raw])
_KNOWN = frozenset(field.encode_name for field in msgspec.structs.fields(Request)) - {""}


def encode(request: Request) -> bytes:
    """`request` as the bytes that stand in an entry's `request` field."""
    if not request.rest:
        return _encoder.encode(request)
    known = _encoder.encode(msgspec.structs.replace(request, rest={}))
    return known[:-1] + b"," + _encoder.encode(request.rest)[1:]


def decode(raw: bytes) -> Request:
    """The request that stands in an entry's `request` field.

    Raises:
        NewerVersion: a request of a newer release.
        msgspec.DecodeError: not a request of ours.
    """
    try:
        request = _decoder.decode(raw)
    except msgspec.ValidationError:
        request = _with_rest(raw)
    if request.v > WIRE_VERSION:
        raise NewerVersion(request.id)
    return request


def _read(parts: dict[str, msgspec.Raw], name: str, kind: type[T], *, default: T) -> T:
    """One part of a request, if it is there and of its kind."""
    try:
        return msgspec.json.decode(parts[name], type=kind)
    except (KeyError, msgspec.ValidationError):
        return default


def _with_rest(raw: bytes) -> Request:
    """The request in `raw`, in which something isn't known here: the version tells whether that matters."""
    parts = _shallow.decode(raw)
    if _read(parts, "v", int, default=WIRE_VERSION) > WIRE_VERSION:
        raise NewerVersion(_read(parts, "id", str, default=""))
    rest = {name: parts.pop(name) for name in list(parts) if name not in _KNOWN}
    return msgspec.structs.replace(_decoder.decode(_encoder.encode(parts)), rest=rest)
