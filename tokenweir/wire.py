"""The wire format that producers and consumers see: results, events, tickets, status.

Shared by the client and the engine, so that what one writes the other reads. Fields are documented in
docs/wire-format.md; unknown fields are ignored, so that old readers survive new writers.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tokenweir.errors import ERROR_TYPES, ErrorCode

Class = Literal["interactive", "standard", "batch"]
ResultStatus = Literal["ok", "error", "cancelled", "expired"]
Route = Literal["premium", "edge", "none"]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens the model counted, or, where `estimated`, what we counted in its place."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    estimated: bool = False


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The one terminal result of a request id (and replay number).

    Attributes:
        content: the answer's text; may be empty (tool call, refusal, filter).
        body: an OpenAI chat-completion object, or an OpenAI error object (`{"error": {...}}`).
        code: with status other than `ok`, one of `tokenweir.errors.ErrorCode`; else empty.
        waited_ms: from ingest to the start of the model call (or to the error).
        ttft_ms: from ingest to the first token; total_ms: from ingest to the end. -1 = didn't happen.
    """

    id: str
    status: ResultStatus
    route: Route = "none"
    model: str = ""
    content: str = ""
    body: msgspec.Raw = msgspec.Raw(b"{}")
    code: str = ""
    finish_reason: str = ""
    usage: Usage = Usage()
    attempt: int = 1
    replay: int = 0
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    waited_ms: float = -1
    ttft_ms: float = -1
    total_ms: float = -1

    @property
    def ok(self) -> bool:
        """Whether `content` is an answer."""
        return self.status == "ok"

    def json(self) -> dict[str, Any]:
        """As plain Python values, e.g. to print or to store."""
        decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return decoded


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a streamed answer: `delta` carries text, `done` carries the result.

    A `delta` whose `attempt` is higher than the last one's starts the answer again.
    """

    id: str
    kind: Literal["queued", "delta", "done"]
    text: str = ""
    attempt: int = 1
    index: int = 0
    position: int = 0
    eta_s: float = 0
    result: Result | None = None


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is still on its way: ask for its result later.

    `position` and `eta_s` are estimates from the work ahead and the budget's refill; 0 = not in the backlog.
    """

    id: str
    state: str
    position: int = 0
    eta_s: float = 0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request is: `state` is `submitted`, `waiting`, `deferred`, `calling` or `done`."""

    id: str
    state: str
    stage: str = ""
    route: str = ""
    attempt: int = 1
    replay: int = 0
    position: int = 0
    eta_s: float = 0
    result: Result | None = None


_TEXT_FIELDS = ("id", "status", "route", "model", "content", "code", "finish_reason")
_NUMBER_FIELDS = ("attempt", "replay", "waited_ms", "ttft_ms", "total_ms")


def error_body(code: ErrorCode, message: str) -> bytes:
    """An OpenAI error object as JSON, such as clients written for OpenAI expect."""
    return msgspec.json.encode(
        {"error": {"message": message, "type": ERROR_TYPES.get(code, "server_error"), "code": code, "param": None}}
    )


def result_fields(result: Result) -> dict[str, bytes | str]:
    """The flat fields of a result as they stand on `responses`."""
    fields: dict[str, bytes | str] = {name: getattr(result, name) for name in _TEXT_FIELDS}
    fields["body"] = bytes(result.body)
    fields["usage"] = msgspec.json.encode(result.usage)
    fields["metadata"] = bytes(result.metadata)
    fields["attempt"] = str(result.attempt)
    fields["replay"] = str(result.replay)
    for name in ("waited_ms", "ttft_ms", "total_ms"):
        fields[name] = f"{getattr(result, name):.3f}"
    return fields


def result_from_fields(fields: dict[bytes, bytes]) -> Result:
    """The result that stands in an entry of `responses`.

    Raises:
        msgspec.ValidationError: a field is missing or isn't of its type.
    """
    try:
        plain: dict[str, object] = {
            name: fields[name.encode()].decode() for name in (*_TEXT_FIELDS, *_NUMBER_FIELDS) if name.encode() in fields
        }
        plain["usage"] = msgspec.json.decode(fields.get(b"usage", b"{}"))
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise msgspec.ValidationError(str(error)) from error
    plain["body"] = msgspec.Raw(fields.get(b"body", b"{}"))
    plain["metadata"] = msgspec.Raw(fields.get(b"metadata", b"{}"))
    return msgspec.convert(plain, Result, strict=False)


def event_from_fields(fields: dict[bytes, bytes]) -> Event:
    """The event that stands in an entry of an inbox or of `reply:<id>`.

    Raises:
        msgspec.ValidationError: a field is missing, isn't of its type, or the kind isn't known here.
    """
    try:
        plain: dict[str, object] = {
            name.decode(): value.decode() for name, value in fields.items() if name != b"result"
        }
        if b"result" in fields:
            plain["result"] = msgspec.json.decode(fields[b"result"], type=Result)
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise msgspec.ValidationError(str(error)) from error
    return msgspec.convert(plain, Event, strict=False)


def status_from_fields(
    request_id: str, fields: dict[bytes, bytes], *, position: int = 0, eta_s: float = 0
) -> Status | None:
    """What the hash `status:<id>` says; None while no entry carries the id.

    Raises:
        msgspec.ValidationError: the hash isn't one of ours.
    """
    # Somebody who waits for an id that hasn't come yet leaves a hash with nothing but an inbox in it.
    if b"entry" not in fields and b"result" not in fields:
        return None
    raw = fields.get(b"result")
    plain: dict[str, object] = {"id": request_id, "position": position, "eta_s": eta_s}
    try:
        for name in ("state", "stage", "route", "attempt", "replay"):
            if name.encode() in fields:
                plain[name] = fields[name.encode()].decode()
        if raw is not None:
            plain["result"] = result = msgspec.json.decode(raw, type=Result)
            plain.update(state="done", route=result.route, attempt=result.attempt, replay=result.replay)
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise msgspec.ValidationError(str(error)) from error
    return msgspec.convert(plain, Status, strict=False)
