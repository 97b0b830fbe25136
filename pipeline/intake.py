"""An entry as a producer wrote it becomes a request, or an error that says what to mend. Pure.

Any bytes are survived: nothing but `RequestError` and `NewerVersion` leaves this module. Where a field stands twice
the last one wins, since that is how entries arrive; fields that aren't named here are ignored.
"""

from __future__ import annotations

import math
import re
from typing import Final, Literal, cast

import msgspec

from pipeline import tokens
from pipeline.body import Body, from_prompt, read_body, read_object
from pipeline.complexity import edge_serves, is_simple
from pipeline.config import Pool
from pipeline.message import WIRE_VERSION, NewerVersion, Request, is_newer
from tokenweir.errors import RequestError
from tokenweir.keys import CLASSES, Keys, valid_id
from tokenweir.wire import Class

# What is read of an entry (docs/wire-format.md), and the number of its life.
FIELDS: Final = frozenset(
    b"prompt body id tenant class task complexity deadline max_wait stream reply_to metadata v replay".split()
)
_METADATA_BYTES: Final = 4096
_LABEL_CHARACTERS: Final = 128
# The year 5138 in seconds; a larger number was meant as milliseconds.
_LATEST_S: Final = 1e11
_NUMBER = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?\Z")
_FLAGS: Final = {"1": True, "true": True, "0": False, "false": False, "": False}
# These models of OpenAI refuse `max_tokens`; servers of other makers often know nothing else.
_COMPLETION_CAP_ONLY = re.compile(r"o[1-9]|gpt-5")

Fields = dict[bytes, bytes]


class TooLarge(RequestError):
    """More tokens than any deployment of the pool may ever grant. `request` is complete apart from that."""

    def __init__(self, request: Request, limit: int) -> None:
        super().__init__(
            f"the request needs {request.tokens:,} tokens ({request.prompt_tokens:,} for the prompt and "
            f"{request.output_tokens:,} for the answer), the limit is {limit:,}; shorten the prompt or lower its cap",
            code="too_large_for_limit",
        )
        self.request = request


def read_entry(fields: Fields, *, entry_id: str, entered_ms: int, pool: Pool, keys: Keys) -> Request:
    """The complete, checked request in the fields of an entry; its attempt is 1 and its replay 0.

    Args:
        entry_id: stands for the id where the producer gave none.
        entered_ms: Redis time at which the entry was written; `max_wait` counts from it.

    Raises:
        NewerVersion: producers and workers of a newer release know what it means.
        TooLarge: a request like any other, yet it can never be granted.
        RequestError: the fields can't be understood; one line with the field and the cure.
    """
    version = _text(fields, b"v", str(WIRE_VERSION))
    if is_newer(version):
        raise NewerVersion(readable_id(fields, entry_id))
    if version != str(WIRE_VERSION):
        raise RequestError(f"`v` names a wire version that isn't spoken here; leave it out or set it to {WIRE_VERSION}")
    priority = cast("Class", _one_of(fields, b"class", CLASSES, CLASSES[0]))
    stated = _one_of(fields, b"complexity", ("simple", "complex"), "")
    task = _label(fields, b"task", "", least=0)
    body = _body(fields, pool, cap=getattr(pool.caps, priority))
    prompt_tokens = _prompt_tokens(body, pool)
    output_tokens = body.cap * body.n
    request = Request(
        id=_id(fields, entry_id),
        body=msgspec.Raw(body.raw),
        tenant=_label(fields, b"tenant", "default", least=1),
        priority=priority,
        task=task,
        simple=is_simple(body.chat, task=task, stated=stated, prompt_tokens=prompt_tokens, edge=pool.edge),
        edge=edge_serves(body.chat, n=body.n, tokens=prompt_tokens + output_tokens, edge=pool.edge),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        entered_ms=entered_ms,
        deadline_ms=_deadline_ms(fields, entered_ms),
        stream=_flag(fields, b"stream") or body.stream,
        reply_to=_inbox(fields, keys),
        metadata=_metadata(fields),
    )
    limit = largest_request(pool)
    if limit is not None and request.tokens > limit:
        raise TooLarge(request, limit)
    return request


def readable_id(fields: Fields, entry_id: str) -> str:
    """The id under which the producer looks for an answer: its own where that is valid, else the entry's."""
    own = fields.get(b"id", b"").decode("ascii", "replace")
    return own if valid_id(own) else entry_id


def largest_request(pool: Pool) -> int | None:
    """Tokens of the largest request that some deployment may grant; None = no limit.

    By default half the largest token limit: a request that needs a whole window would wait for an idle one.
    """
    if pool.max_request_tokens is not None:
        return pool.max_request_tokens
    limits = [deployment.tpm for deployment in pool.deployments if deployment.tpm is not None]
    return max(limits) // 2 if len(limits) == len(pool.deployments) else None


def _body(fields: Fields, pool: Pool, *, cap: int) -> Body:
    given = [name for name in (b"prompt", b"body") if name in fields]
    if len(given) != 1:
        raise RequestError(
            "give `prompt`, or `body`, and not both" if given else "`prompt` or `body` is missing; give one"
        )
    raw, name = fields[given[0]], given[0].decode()
    if not raw:
        raise RequestError(f"`{name}` is empty")
    if len(raw) > pool.max_body_bytes:
        raise RequestError(f"`{name}` has {len(raw):,} bytes; at most {pool.max_body_bytes:,} are taken")
    model = pool.deployments[0].model.rpartition("/")[2]
    cap_name = "max_completion_tokens" if _COMPLETION_CAP_ONLY.match(model) else "max_tokens"
    if name == "body":
        return read_body(raw, cap=cap, cap_name=cap_name)
    return from_prompt(_text(fields, b"prompt", ""), cap=cap, cap_name=cap_name)


def _prompt_tokens(body: Body, pool: Pool) -> int:
    """Any deployment may take the request, so the highest of their counts is what it costs."""
    return max(tokens.estimate_prompt(body.chat, model) for model in {each.model for each in pool.deployments})


def _text(fields: Fields, name: bytes, default: str) -> str:
    raw = fields.get(name)
    if raw is None:
        return default
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"`{name.decode()}` isn't UTF-8 text") from error


def _label(fields: Fields, name: bytes, default: str, *, least: Literal[0, 1]) -> str:
    text = _text(fields, name, default)
    if not least <= len(text) <= _LABEL_CHARACTERS or not text.isprintable():
        raise RequestError(f"`{name.decode()}` must be {least} to {_LABEL_CHARACTERS} printable characters")
    return text


def _one_of(fields: Fields, name: bytes, known: tuple[str, ...], default: str) -> str:
    text = _text(fields, name, default)
    if text != default and text not in known:
        raise RequestError(f"`{name.decode()}` must be one of {', '.join(known)}")
    return text


def _id(fields: Fields, entry_id: str) -> str:
    text = _text(fields, b"id", entry_id)
    if not valid_id(text):
        raise RequestError("`id` must be 1 to 128 visible ASCII characters; leave it out to get one")
    return text


def _flag(fields: Fields, name: bytes) -> bool:
    value = _FLAGS.get(_text(fields, name, ""))
    if value is None:
        raise RequestError(f"`{name.decode()}` must be 1 or 0")
    return value


def _seconds(fields: Fields, name: bytes) -> float | None:
    if name not in fields:
        return None
    text = _text(fields, name, "")
    value = float(text) if _NUMBER.match(text) else 0.0
    if value <= 0:
        raise RequestError(f"`{name.decode()}` must be a plain number of seconds above 0")
    if value > _LATEST_S:
        raise RequestError(f"`{name.decode()}` must be in seconds; it looks like milliseconds")
    return value


def _deadline_ms(fields: Fields, entered_ms: int) -> int:
    """The earlier of both forms, rounded up to the next millisecond; 0 = none given."""
    at_s, wait_s = _seconds(fields, b"deadline"), _seconds(fields, b"max_wait")
    ends = [] if at_s is None else [at_s * 1000]
    if wait_s is not None:
        ends.append(entered_ms + wait_s * 1000)
    return math.ceil(min(ends)) if ends else 0


def _inbox(fields: Fields, keys: Keys) -> str:
    if b"reply_to" not in fields:
        return ""
    name = keys.inbox_name(_text(fields, b"reply_to", ""))
    if name is None:
        raise RequestError(f"`reply_to` must be an inbox of this pool: {keys.inbox('<name>')}")
    return name


def _metadata(fields: Fields) -> msgspec.Raw:
    raw = fields.get(b"metadata", b"{}")
    if len(raw) > _METADATA_BYTES:
        raise RequestError(f"`metadata` has {len(raw):,} bytes; at most {_METADATA_BYTES:,} are taken")
    _, mended = read_object(raw, field="metadata")
    return msgspec.Raw(mended)
