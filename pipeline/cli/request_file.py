"""A file of requests, one a line, as JSON. Pure: lines in, drafts out; what is wrong with a line stays with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

import msgspec

from tokenweir.draft import Draft
from tokenweir.errors import RequestError
from tokenweir.wire import Class

_ID_CHARACTERS = 32
_CHAT = "/v1/chat/completions"


class Defaults(NamedTuple):
    """What holds for lines that don't say otherwise."""

    tenant: str
    priority: Class
    task: str
    complexity: str
    max_wait: float | None


class Line(NamedTuple):
    """A line of the file: the request in it, or what is wrong with it."""

    number: int
    draft: Draft | None
    fault: str = ""


class _Fields(msgspec.Struct):
    """The fields of producers (docs/wire-format.md), and of lines of an OpenAI batch file. Others are ignored."""

    prompt: str | None = None
    body: dict[str, Any] | None = None
    id: str | None = None
    custom_id: str | None = None
    url: str = _CHAT
    tenant: str | None = None
    priority: str | None = msgspec.field(default=None, name="class")
    task: str | None = None
    complexity: str | None = None
    deadline: float | None = None
    max_wait: float | None = None
    metadata: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(_Fields)


def read_requests(lines: Iterable[bytes], defaults: Defaults) -> Iterator[Line]:
    """The requests of a file in order, empty lines left out.

    A request without an id gets one from its text and its place, the same in every run: submitting a file again
    queues nothing twice.
    """
    seen: dict[str, int] = {}
    for number, raw in enumerate(lines, 1):
        text = raw.strip()
        if not text:
            continue
        try:
            draft = _draft(text, number, defaults)
            draft.fields()  # raises what submitting it would raise
        except RequestError as error:
            yield Line(number, None, str(error))
            continue
        if draft.id in seen:
            yield Line(number, None, f"the id {draft.id} stands in line {seen[draft.id]} already")
            continue
        seen[draft.id] = number
        yield Line(number, draft)


def _draft(text: bytes, number: int, defaults: Defaults) -> Draft:
    try:
        fields = _decoder.decode(text)
    except msgspec.ValidationError as error:
        raise RequestError(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"not JSON: {error}") from error
    if fields.prompt is None and fields.body is None:
        raise RequestError("`prompt` or `body` is missing; give one")
    if fields.prompt is not None and fields.body is not None:
        raise RequestError("give `prompt`, or `body`, and not both")
    if fields.url != _CHAT:
        raise RequestError(f"only requests for {_CHAT} are taken, and not for {fields.url}")
    content = fields.body if fields.prompt is None else fields.prompt
    assert content is not None
    return Draft(
        content,
        id=_first(fields.id, fields.custom_id, _id_of(text, number)),
        tenant=_first(fields.tenant, defaults.tenant),
        priority=cast("Class", _first(fields.priority, defaults.priority)),
        task=_first(fields.task, defaults.task),
        complexity=_first(fields.complexity, defaults.complexity),
        deadline=fields.deadline,
        max_wait=defaults.max_wait if fields.max_wait is None else fields.max_wait,
        metadata=fields.metadata,
    )


def _id_of(text: bytes, number: int) -> str:
    return hashlib.sha256(text + b"\n%d" % number).hexdigest()[:_ID_CHARACTERS]


def _first(*given: str | None) -> str:
    return next(text for text in given if text is not None)
