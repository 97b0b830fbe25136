"""Events out of bytes, and a completion out of its pieces."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.message import Request
from stages.providers.assembly import Assembly, NotAChunk
from stages.providers.events import Events, decode

REQUEST = Request(id="r1", body=msgspec.Raw(b"{}"), prompt_tokens=3)
STREAM = (
    b': hi\r\n\r\ndata: {"a":1}\n\ndata:first\ndata: second\r\rid: 7\nevent: error\ndata: x\n\n'
    b"event: lost\n\ndata: [DONE]"
)
EVENTS = [(b"", b'{"a":1}'), (b"", b"first\nsecond"), (b"error", b"x"), (b"", b"[DONE]")]


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_the_network_may_cut_anywhere(cuts: list[int]) -> None:
    """However a stream arrives, its events are the same; comments and unknown fields are skipped."""
    edges = [0, *sorted(cuts), len(STREAM)]
    events = Events()

    found = [one for a, b in pairwise(edges) for one in events.feed(STREAM[a:b])]

    assert [*found, *events.end()] == EVENTS


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (rb'"a\ud83d"', "a\ufffd"),
        (rb'"\ude00b"', "\ufffdb"),
        (b'"\xff"', "\ufffd"),
    ],
)
def test_broken_characters_are_mended(raw: bytes, text: str) -> None:
    """Half a character of a provider's doesn't cost the whole answer."""
    assert decode(raw) == text


def assembled(*deltas: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The first choice's message, made of `deltas`."""
    assembly = Assembly(REQUEST, model="m", choices=1)
    for delta in deltas:
        assembly.add({"id": "c", "choices": [{"index": 0, "delta": delta}], **more})
    assembly.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    assert assembly.complete
    body: dict[str, Any] = msgspec.json.decode(assembly.answer().body)
    return body


def call(index: int | None, arguments: str, **more: str) -> dict[str, Any]:
    name = {"name": more.pop("name")} if "name" in more else {}
    place = {} if index is None else {"index": index}
    return {"tool_calls": [{**place, **more, "function": {**name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    "deltas",
    [
        (call(0, "{", id="a", name="f"), call(0, "}"), call(1, "[", id="b", name="g"), call(1, "]")),
        (call(0, "{", id="a", name="f"), call(1, "[", id="b", name="g"), call(0, "}", name="f"), call(1, "]", id="b")),
        (call(0, "{}", id="a", name="f"), call(0, "[]", id="b", name="g")),
        (call(None, "{", id="a", name="f"), call(None, "}"), call(None, "[]", id="b", name="g")),
    ],
    ids=["in-order", "mixed", "always-index-0", "no-index"],
)
def test_tool_calls_are_put_together(deltas: tuple[dict[str, Any], ...]) -> None:
    """Each call comes out whole, however the server numbers its pieces."""
    message = assembled(*deltas)["choices"][0]["message"]

    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "a", "function": {"name": "f", "arguments": "{}"}},
        {"id": "b", "function": {"name": "g", "arguments": "[]"}},
    ]


def test_fields_that_we_dont_know_pass() -> None:
    """What a provider adds to chunks and deltas stands in the completion, texts joined."""
    body = assembled(
        {"reasoning_content": "be", "audio": {"id": "x", "data": "AA"}},
        {"reasoning_content": "cause", "audio": {"id": "x", "data": "BB"}, "content": "so"},
        system_fingerprint="fp",
        obfuscation="zzz",
    )

    message = body["choices"][0]["message"]
    assert body["system_fingerprint"] == "fp"
    assert "obfuscation" not in body
    assert (message["reasoning_content"], message["audio"]) == ("because", {"id": "x", "data": "AABB"})


def test_token_probabilities_are_joined() -> None:
    """Asked for logprobs, the caller gets those of all chunks; a filter's verdict is the last one."""
    assembly = Assembly(REQUEST, model="m", choices=1)
    for number in (1, 2):
        logprobs, verdict = {"content": [number]}, {"hate": {"severity": "safe"}}
        choice = {"delta": {"content": "x"}, "logprobs": logprobs, "content_filter_results": verdict}
        assembly.add({"choices": [{**choice, "finish_reason": "stop"}]})

    choice = msgspec.json.decode(assembly.answer().body)["choices"][0]
    assert choice["logprobs"] == {"content": [1, 2]}
    assert choice["content_filter_results"] == {"hate": {"severity": "safe"}}


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": -1}, {"prompt_tokens": "9"}, {"total_tokens": 0}, {"total_tokens": None}]
)
def test_a_count_that_is_none_is_replaced_by_an_estimate(usage: object) -> None:
    """A provider's nonsense is never taken for a count of 0."""
    assembly = Assembly(REQUEST, model="m", choices=1)
    assembly.add({"choices": [{"delta": {"content": "Hello"}, "finish_reason": "stop"}], "usage": usage})

    answer = assembly.answer()

    assert answer.usage.estimated
    assert answer.usage.total_tokens > 3
    assert msgspec.json.decode(answer.body)["usage"]["total_tokens"] == answer.usage.total_tokens


def test_usage_on_every_chunk_isnt_summed() -> None:
    """Where a provider counts along, the last count is the count."""
    assembly = Assembly(REQUEST, model="m", choices=1)
    for count in (1, 2, 3):
        usage = {"prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count}
        assembly.add({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}], "usage": usage})

    assert assembly.answer().usage.total_tokens == 8


_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["choices", "index", "delta", "content", "tool_calls", "id", "usage", "finish_reason"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(chunks=st.lists(_json, max_size=4))
def test_any_chunk_is_survived(chunks: list[Any]) -> None:
    """Whatever a server sends as chunks, the outcome is an answer or `NotAChunk`, never a crash."""
    assembly = Assembly(REQUEST, model="m", choices=1)
    try:
        for chunk in chunks:
            assembly.add(chunk)
    except NotAChunk:
        return
    if assembly.complete:
        assert msgspec.json.decode(assembly.answer().body)["object"]
