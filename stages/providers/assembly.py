"""One chat completion out of its pieces.

Pure. Works on plain values, since providers add fields of their own and these pass through. A whole
completion is a single piece, so that servers which ignore `stream` need no second way.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from pipeline.answer import Answer, estimated
from pipeline.message import Request
from tokenweir.wire import Usage

# Fields of a chunk that don't belong into the completion.
_OWN_FIELDS = frozenset({"choices", "usage", "object", "obfuscation", "error"})
# Strings that are said once, and not continued by the next piece.
_SAID_ONCE = frozenset({"id", "type", "name", "role"})


class NotAChunk(ValueError):
    """A piece isn't of the form of a chat completion."""


class Choice:
    """One choice of an answer while it grows."""

    def __init__(self) -> None:
        # All of it belongs to the one reader of the stream.
        self.texts: list[str] = []
        self.finish_reason = ""
        self._message: dict[str, Any] = {}
        self._calls: dict[object, dict[str, Any]] = {}
        self._rest: dict[str, Any] = {}

    def add(self, choice: dict[str, Any]) -> str:
        """Take a piece in; the text that it brought."""
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])
        for key, value in choice.items():
            if value is not None and key not in ("index", "delta", "message", "finish_reason"):
                self._rest[key] = _merged(self._rest.get(key), value, key) if key == "logprobs" else value
        delta = choice.get("delta") or choice.get("message") or {}
        if not isinstance(delta, dict):
            raise NotAChunk("a delta that is no object")
        text = ""
        for key, value in delta.items():
            if key == "content":
                text = _text(value)
            elif key == "tool_calls":
                self._add_calls(value)
            elif value is not None:
                self._message[key] = _merged(self._message.get(key), value, key)
        if text:
            self.texts.append(text)
        return text

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def spoke(self) -> bool:
        """Whether anything for the caller has come: text, a refusal, or a call."""
        message = self._message
        return bool(self.texts or self._calls or message.get("refusal") or message.get("function_call"))

    @property
    def output_bytes(self) -> int:
        """Size of everything that the model wrote."""
        return len(self.text.encode()) + len(msgspec.json.encode([self._message, list(self._calls.values())]))

    def completed(self, index: int) -> dict[str, Any]:
        """As it stands in a completion."""
        otherwise = not self.texts and self.spoke
        message = {"role": "assistant", "content": None if otherwise else self.text, "refusal": None, **self._message}
        if self._calls:
            message["tool_calls"] = list(self._calls.values())
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": self.finish_reason,
            **self._rest,
        }

    def _add_calls(self, calls: object) -> None:
        if calls is None:
            return
        if not isinstance(calls, list):
            raise NotAChunk("tool calls that are no list")
        for call in calls:
            if not isinstance(call, dict):
                raise NotAChunk("a tool call that is no object")
            known = self._calls.setdefault(self._key(call), {})
            for key, value in call.items():
                if key != "index" and value is not None:
                    known[key] = _merged(known.get(key), value, key)

    def _key(self, call: dict[str, Any]) -> object:
        """Which call a piece continues. Some servers send no index, some send 0 for every call."""
        named, index = call.get("id"), call.get("index")
        key = index if isinstance(index, int) else named or next(reversed(self._calls), 0)
        known = self._calls.get(key, {}).get("id")
        return named if named and known and named != known else key


class Assembly:
    """Collects the pieces of one answer."""

    def __init__(self, request: Request, *, model: str, choices: int) -> None:
        self._request = request
        self._model = model
        self._expected = choices
        # All of it belongs to the one reader of the stream.
        self._head: dict[str, Any] = {}
        self._choices: dict[int, Choice] = {}
        self._usage: dict[str, Any] | None = None
        self.first_s = -1.0

    def add(self, chunk: object) -> str:
        """Take a piece in; the text that it brought for the first choice.

        Raises:
            NotAChunk: it isn't a piece of a completion.
        """
        if not isinstance(chunk, dict):
            raise NotAChunk("a chunk that is no object")
        for key, value in chunk.items():
            if key not in _OWN_FIELDS and value not in (None, ""):
                self._head[key] = value
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        first = ""
        choices = chunk.get("choices") or []
        if not isinstance(choices, list):
            raise NotAChunk("choices that are no list")
        for choice in choices:
            index = choice.get("index") or 0 if isinstance(choice, dict) else None
            if not isinstance(index, int):
                raise NotAChunk("a choice that is none")
            if index not in self._choices:
                self._choices[index] = Choice()
            text = self._choices[index].add(choice)
            if self.first_s < 0 and self._choices[index].spoke:
                self.first_s = time.monotonic()
            if index == 0:
                first = text
        return first

    @property
    def empty(self) -> bool:
        """Whether no choice has come at all."""
        return not self._choices

    @property
    def complete(self) -> bool:
        """Whether every choice is at its end, and nothing more can come."""
        return len(self._choices) >= self._expected and all(one.finish_reason for one in self._choices.values())

    def end(self) -> None:
        """The provider says that it is done: what hasn't begun by now was not served, e.g. by servers without `n`."""
        self._expected = max(1, len(self._choices))

    def answer(self) -> Answer:
        """The whole answer; to be asked for once it is complete."""
        order = sorted(self._choices)
        first = self._choices[order[0]]
        usage = _usage(self._usage) or estimated(
            self._request, sum(choice.output_bytes for choice in self._choices.values())
        )
        body = {
            "id": f"chatcmpl-{self._request.id}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._model,
            **self._head,
            "choices": [self._choices[index].completed(index) for index in order],
            "usage": _usage_body(usage) if usage.estimated else self._usage,
        }
        return Answer(
            model=str(body["model"]),
            content=first.text,
            body=msgspec.json.encode(body),
            finish_reason=first.finish_reason,
            usage=usage,
            first_s=self.first_s,
        )


def _usage(stated: dict[str, Any] | None) -> Usage | None:
    """The provider's own count, or None where it isn't one."""
    counts = [(stated or {}).get(key) for key in ("prompt_tokens", "completion_tokens", "total_tokens")]
    prompt, completion, total = (count if isinstance(count, int) and count >= 0 else 0 for count in counts)
    total = total or prompt + completion
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=total) if total else None


def _usage_body(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def _text(content: object) -> str:
    """The text of a content, which may come as a list of parts."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise NotAChunk("a content that is neither text nor parts")
    return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))


def _merged(old: Any, new: Any, key: str) -> Any:
    """`new` as the continuation of `old`: texts and lists go on, objects grow, all else is replaced."""
    if isinstance(old, str) and isinstance(new, str):
        return (old or new) if key in _SAID_ONCE else old + new
    if isinstance(old, list) and isinstance(new, list):
        return old + new
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {name: _merged(old.get(name), value, name) for name, value in new.items() if value is not None}
    return new if old is None or new else old
