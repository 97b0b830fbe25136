"""A chat-completions body as a producer sent it: checked, and with one output cap. Pure.

What the pipeline relies on is checked: messages, caps, `n`, `stream`. All else is the provider's business and
passes through byte for byte. Where a key stands twice the last one wins, as everywhere in JSON.
"""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

import msgspec

from tokenweir.errors import RequestError

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
CAP_NAMES: Final = ("max_completion_tokens", "max_tokens")
_STREAM_NAMES: Final = ("stream", "stream_options")
_MOST_CHOICES: Final = 128
# Far above any model's output, and far below what 64 bits hold once multiplied by `n`.
_LARGEST_CAP: Final = 10_000_000
# Tool schemas reach 20. Without a bound a later stage could meet Python's recursion limit.
_DEEPEST: Final = 128
_BOM = b"\xef\xbb\xbf"
# Every escape in turn, so that a backslash which is itself escaped starts none. Group 1: half a pair, alone.
_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A body that can go to a provider.

    Attributes:
        chat: it, decoded; may still hold what `raw` has lost (`stream`, other caps).
        raw: it as JSON: without `stream`, with exactly one output cap.
        cap: output tokens for each of the `n` choices. stream: the producer asked for deltas in the body.
    """

    chat: dict[str, Any]
    raw: bytes
    cap: int
    n: int = 1
    stream: bool = False


def from_prompt(prompt: str, *, cap: int, cap_name: str) -> Body:
    """The body that asks `prompt` as a user; every character of it is kept."""
    chat = {"messages": [{"role": "user", "content": prompt}], cap_name: cap}
    return Body(chat=chat, raw=msgspec.json.encode(chat), cap=cap)


def read_body(raw: bytes, *, cap: int, cap_name: str) -> Body:
    """The producer's own body, with `cap` under `cap_name` where it brings none.

    Raises:
        RequestError: it can't be used; the text names the place and the cure.
    """
    chat, raw = read_object(raw.removeprefix(_BOM), field="body")
    _check_messages(chat.get("messages"))
    n = 1 if chat.get("n") is None else _whole(chat["n"], "n", most=_MOST_CHOICES)
    stream = chat.get("stream")
    if stream is not None and type(stream) is not bool:
        raise RequestError("`body.stream` must be true or false")
    given = {name: _whole(chat[name], name, most=_LARGEST_CAP) for name in CAP_NAMES if chat.get(name) is not None}
    if given:
        # Two caps that disagree: the provider may honour either, so the larger one is reserved and sent.
        cap, cap_name = max(given.values()), next(iter(given))
    kept = {name: chat[name] for name in (*CAP_NAMES, *_STREAM_NAMES) if name in chat}
    if kept != {cap_name: cap}:
        raw = _rewritten(raw, {cap_name: cap})
    return Body(chat=chat, raw=raw, cap=cap, n=n, stream=bool(stream))


def read_object(raw: bytes, *, field: str) -> tuple[dict[str, Any], bytes]:
    """The JSON object in `raw`, and `raw` itself with every half surrogate pair replaced by U+FFFD.

    Raises:
        RequestError: not JSON, not an object, or nested too deeply; the text names `field`.
    """
    try:
        try:
            decoded = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            if not _HALF_PAIR.search(raw):
                raise
            raw = _ESCAPES.sub(lambda escape: rb"\ufffd" if escape[1] else escape[0], raw)
            decoded = msgspec.json.decode(raw)
    except RecursionError:
        _too_deep(field)
    except (msgspec.DecodeError, ValueError) as error:
        raise RequestError(f"`{field}` isn't valid JSON: {error}") from error
    if type(decoded) is not dict:
        raise RequestError(f"`{field}` must be a JSON object, not {_kind(decoded)}")
    if raw.count(b"{") + raw.count(b"[") > _DEEPEST:
        _check_depth(decoded, field)
    return decoded, raw


def _check_messages(messages: Any) -> None:
    if type(messages) is not list or not messages:
        raise RequestError("`body.messages` must be a list with at least one message")
    for index, message in enumerate(messages):
        if type(message) is not dict:
            raise RequestError(f"`body.messages[{index}]` must be an object with `role` and `content`")
        if message.get("role") not in ROLES:
            raise RequestError(f"`body.messages[{index}].role` must be one of {', '.join(ROLES)}")
        content = message.get("content")
        if content is not None and type(content) is not str and type(content) is not list:
            raise RequestError(f"`body.messages[{index}].content` must be text, a list of parts or null")


def _check_depth(value: Any, field: str) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        children = (child for node in level for child in (node.values() if type(node) is dict else node))
        level = [child for child in children if type(child) is dict or type(child) is list]
        if not level:
            return
    _too_deep(field)


def _too_deep(field: str) -> NoReturn:
    raise RequestError(f"`{field}` is nested too deeply; at most {_DEEPEST} levels")


def _whole(value: Any, name: str, *, most: int) -> int:
    if type(value) is not int:
        raise RequestError(f"`body.{name}` must be a whole number, not {_kind(value)}")
    if not 1 <= value <= most:
        raise RequestError(f"`body.{name}` must be from 1 to {most:,}")
    return value


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    names = {str: "text", int: "a number", float: "a fraction", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def _rewritten(raw: bytes, cap: dict[str, int]) -> bytes:
    """`raw` with `cap` for all its caps, and without `stream`; values that stay aren't decoded."""
    parts: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    for name in (*CAP_NAMES, *_STREAM_NAMES):
        parts.pop(name, None)
    return msgspec.json.encode(parts | cap)
