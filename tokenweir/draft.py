"""A request as a producer writes it: checked as far as that is cheap, and turned into the fields of an entry.

Pure. The engine checks everything again, since anyone may write entries; what is refused here just comes back sooner.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

import msgspec

from tokenweir.errors import RequestError
from tokenweir.keys import CLASSES, INGEST_LANES, valid_id
from tokenweir.wire import Class

# A prompt, a chat-completions body, or its list of messages.
Content = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]

_COMPLEXITIES: Final = ("", "simple", "complex")
_LABEL_CHARACTERS: Final = 128
_METADATA_BYTES: Final = 4096
# The year 5138 in seconds; a larger number was meant as milliseconds.
_LATEST_S: Final = 1e11
_SHORTEST_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Draft:
    """A request before it is queued. Submitting the same draft again queues nothing new, since it keeps its id.

    Attributes:
        content: the prompt, or a chat-completions body, or its list of messages.
        id: 1 to 128 visible ASCII characters, the same for repeats of one request; by default a new UUID's hex form.
        tenant: whose turn it takes; waiting tenants are served fairly.
        priority: `interactive`, `standard` or `batch`.
        task: what it is for; the configuration says which tasks the edge model may answer.
        complexity: `simple` or `complex`, if you know better than the classifier; else empty.
        deadline: Unix seconds. Not answered by then, its result is `deadline_exceeded`, and a call that runs is closed.
        max_wait: the same in seconds from when Redis takes it in; the earlier of both counts.
        stream: token deltas are wanted, on the stream `reply:<id>` (`Client.stream` does all that by itself).
        metadata: a JSON object of up to 4 kB, which comes back with the result.
    """

    content: Content
    _: KW_ONLY
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    tenant: str = "default"
    priority: Class = "interactive"
    task: str = ""
    complexity: str = ""
    deadline: float | None = None
    max_wait: float | None = None
    stream: bool = False
    metadata: Mapping[str, Any] | None = None

    @property
    def lane(self) -> str:
        """The stream it goes to: batch work has one of its own, so that nobody stands behind it."""
        return INGEST_LANES[1 if self.priority == "batch" else 0]

    def fields(self) -> list[str | bytes]:
        """Names and values of its entry, in turn.

        Raises:
            RequestError: it could never succeed; one line with the field and the cure.
        """
        if not valid_id(self.id):
            raise RequestError("`id` must be 1 to 128 visible ASCII characters; leave it out to get one")
        if self.priority not in CLASSES:
            raise RequestError(f"`priority` must be one of {', '.join(CLASSES)}")
        if self.complexity not in _COMPLEXITIES:
            raise RequestError("`complexity` must be simple or complex, or left out")
        fields: list[str | bytes] = ["id", self.id, "class", self.priority, *_content(self.content)]
        fields += _label("tenant", self.tenant, default="default", least=1)
        fields += _label("task", self.task, default="", least=0)
        if self.complexity:
            fields += ("complexity", self.complexity)
        fields += _seconds("deadline", self.deadline)
        fields += _seconds("max_wait", self.max_wait)
        if self.stream:
            fields += ("stream", "1")
        if self.metadata is not None:
            fields += ("metadata", _metadata(self.metadata))
        return fields


def checked_id(request_id: str) -> str:
    """The id, if it can be one: it becomes part of a key's name.

    Raises:
        RequestError: it can't.
    """
    if not valid_id(request_id):
        raise RequestError("a request id has 1 to 128 visible ASCII characters")
    return request_id


def as_draft(content: Content | Draft, **more: Any) -> Draft:
    """A draft with the fields `more`, where an `id` of None means a new one; a draft stays as it is."""
    if isinstance(content, Draft):
        return content
    return Draft(content, **{name: value for name, value in more.items() if name != "id" or value is not None})


def _content(content: Content) -> tuple[str, bytes]:
    if isinstance(content, str):
        if not content:
            raise RequestError("the prompt is empty")
        # Half of a surrogate pair has no UTF-8 form: it becomes the replacement character, as in the engine.
        return "prompt", content.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    body = content if isinstance(content, Mapping) else {"messages": content}
    if not body.get("messages"):
        raise RequestError("give a prompt, a chat body with `messages`, or a list of messages")
    return "body", _json(body, name="body")


def _metadata(metadata: Mapping[str, Any]) -> bytes:
    raw = _json(metadata, name="metadata")
    if len(raw) > _METADATA_BYTES:
        raise RequestError(f"`metadata` has {len(raw):,} bytes; at most {_METADATA_BYTES:,} are taken")
    return raw


def _json(value: Mapping[str, Any], *, name: str) -> bytes:
    try:
        return msgspec.json.encode(dict(value))
    except UnicodeEncodeError:
        # Half of a surrogate pair: written as an escape, which the engine mends.
        return json.dumps(value, default=msgspec.to_builtins).encode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise RequestError(f"`{name}` can't be written as JSON: {error}") from error


def _label(name: str, text: str, *, default: str, least: int) -> tuple[str, ...]:
    if not least <= len(text) <= _LABEL_CHARACTERS or not text.isprintable():
        raise RequestError(f"`{name}` must be {least} to {_LABEL_CHARACTERS} printable characters")
    return () if text == default else (name, text)


def _seconds(name: str, value: float | None) -> tuple[str, ...]:
    if value is None:
        return ()
    if not math.isfinite(value) or value < _SHORTEST_S:
        raise RequestError(f"`{name}` must be a number of seconds above 0")
    if value > _LATEST_S:
        raise RequestError(f"`{name}` must be in seconds; it looks like milliseconds")
    return name, f"{value:.3f}"
