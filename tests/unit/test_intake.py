"""What producers may write, what becomes of it, and what they are told when it can't be used."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import Caps, Deployment, Edge, Pool
from pipeline.intake import TooLarge, largest_request, read_entry, readable_id
from pipeline.message import Request, decode, encode
from tokenweir.errors import RequestError
from tokenweir.keys import Keys

ENTRY = "1700000000123-4"
ENTERED_MS = 1_700_000_000_123
KEYS = Keys("main")
POOL = Pool(edge=Edge(), caps=Caps(interactive=111, standard=222, batch=333))
UNLIMITED = Pool(deployments=(Deployment(rpm=10),))
HELLO = '{"messages":[{"role":"user","content":"hi"}]%s}'


def _read(fields: dict[str, str | bytes], pool: Pool = POOL) -> Request:
    raw = {name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in fields.items()}
    request = read_entry(raw, entry_id=ENTRY, entered_ms=ENTERED_MS, pool=pool, keys=KEYS)
    assert decode(encode(request)) == request
    return request


def _refused(fields: dict[str, str | bytes], pool: Pool = POOL) -> RequestError:
    with pytest.raises(RequestError) as caught:
        _read(fields, pool)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


def _body(extra: str = "") -> dict[str, str | bytes]:
    return {"body": HELLO % extra}


def _said(content: Any) -> dict[str, str | bytes]:
    return {"body": msgspec.json.encode({"messages": [{"role": "user", "content": content}]})}


def test_a_prompt_alone_is_a_request() -> None:
    """`XADD ... prompt 'Where is my parcel?'` is all that a newcomer needs."""
    request = _read({"prompt": "Where is my parcel?"})
    assert request.chat() == {"messages": [{"role": "user", "content": "Where is my parcel?"}], "max_tokens": 111}
    assert (request.id, request.tenant, request.priority, request.task) == (ENTRY, "default", "interactive", "")
    assert (request.prompt_tokens, request.output_tokens) == (5 + 4 + 3, 111)
    assert (request.entered_ms, request.deadline_ms, request.stream, request.reply_to) == (ENTERED_MS, 0, False, "")
    assert (bytes(request.metadata), request.attempt, request.replay) == (b"{}", 1, 0)


def test_every_field_is_read() -> None:
    """What a producer says of its request stays with it; fields we don't know are ignored."""
    fields: dict[str, str | bytes] = {
        "prompt": "hi",
        "id": "order-7",
        "tenant": "Müller & Co",
        "class": "batch",
        "task": "intent",
        "complexity": "simple",
        "deadline": "1700000060.5",
        "stream": "1",
        "reply_to": KEYS.inbox("c1"),
        "metadata": '{ "a": [1] }',
        "v": "1",
        "replay": "9",
        "foo": b"\xff",
    }
    request = _read(fields)
    assert (request.id, request.tenant, request.priority, request.task) == ("order-7", "Müller & Co", "batch", "intent")
    assert (request.deadline_ms, request.stream, request.reply_to) == (1_700_000_060_500, True, "c1")
    assert (bytes(request.metadata), request.replay, request.attempt) == (b'{ "a": [1] }', 0, 1)
    assert request.output_tokens == 333
    assert request.simple


def test_the_answer_is_reserved_for_every_choice() -> None:
    """What is reserved for the answer is its cap, or that of its class, times `n`."""
    assert _read(_body(',"n":5,"max_tokens":1000')).output_tokens == 5_000
    assert _read({**_body(',"n":3'), "class": "standard"}).output_tokens == 666


@pytest.mark.parametrize(("field", "wanted"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_deltas_come_to_whoever_asks(field: str, wanted: bool) -> None:
    """Deltas are sent when the field `stream`, or `stream` in the body, asks for them."""
    assert _read({"prompt": "hi", "stream": field}).stream is wanted
    assert _read({**_body(',"stream":true'), "stream": field}).stream


def test_half_surrogates_in_metadata_are_mended() -> None:
    """Metadata with half a surrogate pair comes back with U+FFFD in its place, and breaks no reader."""
    assert bytes(_read({"prompt": "hi", "metadata": r'{"a":"\ud83d"}'}).metadata) == rb'{"a":"\ufffd"}'


def test_reasoning_models_get_the_cap_they_know() -> None:
    """A default cap is written under the only name that newer models of OpenAI take."""
    pool = Pool(deployments=(Deployment(model="o3-mini", tpm=30_000),))
    assert _read({"prompt": "hi"}, pool).chat()["max_completion_tokens"] == 512
    assert "max_tokens" not in _read(_body(), pool).chat()


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, "missing"),
        ({"foo": "bar"}, "missing"),
        ({"prompt": "hi", "body": HELLO % ""}, "both"),
        ({"prompt": ""}, "`prompt` is empty"),
        ({"body": ""}, "`body` is empty"),
        ({"prompt": b"\xff"}, "`prompt` isn't UTF-8"),
        ({"prompt": b"\xed\xa0\x80"}, "`prompt` isn't UTF-8"),
        ({"body": "not json"}, "`body` isn't valid JSON"),
        ({"body": b'{"messages":[{"role":"user","content":"\xff"}]}'}, "`body` isn't valid JSON"),
        *(({"body": text}, "must be a JSON object") for text in ("12345", '"text"', "null", "[]", "true", "1.5")),
        *(({"body": f'{{"messages":{value}}}'}, "messages") for value in ("[]", '"hi"', "null", "{}", "5")),
        ({"body": "{}"}, "messages"),
        *(({"body": f'{{"messages":[{value}]}}'}, "messages[0]") for value in ("null", '"hi"', "[]", "{}")),
        *(({"body": f'{{"messages":[{{"role":{role}}}]}}'}, "role") for role in ('"user2"', "null", "[]", "{}", '""')),
        *((_said(content), "content") for content in (5, True, {"type": "text"})),
        (_body(',"stream":"yes"'), "stream"),
        ({"body": "[" * 500_000}, "nested"),
        ({"body": '{"messages":' + "[" * 500 + "]" * 500 + "}"}, "nested"),
        ({"body": HELLO % (',"x":' + "[" * 300 + "]" * 300)}, "nested"),
        *(({"prompt": "hi", "v": value}, "`v`") for value in ("0", "-2", "", "1.0", b"\xff")),
        *(({"prompt": "hi", "id": value}, "`id`") for value in ("", "a b", "é", "x" * 129, "x" * 10_000, b"\xff")),
        *(({"prompt": "hi", "tenant": value}, "`tenant`") for value in ("", "x" * 129, "a\nb", "a\x00", b"\xff")),
        *(({"prompt": "hi", "task": value}, "`task`") for value in ("x" * 129, "a\tb", b"\xff")),
        *(({"prompt": "hi", "class": value}, "`class`") for value in ("", "urgent", "Batch", b"\xff")),
        *(({"prompt": "hi", "complexity": value}, "`complexity`") for value in ("medium", "Simple")),
        *(({"prompt": "hi", "stream": value}, "`stream`") for value in ("2", "yes", b"\xff")),
        *(
            ({"prompt": "hi", name: value}, f"`{name}`")
            for name in ("deadline", "max_wait")
            for value in ("", "0", "-1", "nan", "inf", "1e5", "soon", " 5", "1_000", "٣", b"\xff", "9" * 400, "0.0")
        ),
        ({"prompt": "hi", "deadline": "1700000060000"}, "milliseconds"),
        *(({"prompt": "hi", "metadata": value}, "`metadata`") for value in ("", "[]", "x", b"\xff", '{"a":NaN}')),
        ({"prompt": "hi", "metadata": '{"a":"' + "x" * 4096 + '"}'}, "4,096"),
        ({"prompt": "hi", "metadata": '{"a":' + "[" * 1500 + "]" * 1500 + "}"}, "nested"),
        *(
            ({"prompt": "hi", "reply_to": value}, "`reply_to`")
            for value in ("", "c1", "tokenweir:{main}:ingest", "tokenweir:{other}:inbox:c1", KEYS.inbox("a b"), b"\xff")
        ),
    ],
)
def test_what_cannot_be_read_says_what_to_mend(fields: dict[str, str | bytes], word: str) -> None:
    """Every refusal is one line that names the field."""
    error = _refused(fields)
    assert word in str(error)
    assert len(str(error)) < 200
    assert error.code == "invalid_request"


def test_the_earlier_deadline_counts() -> None:
    """`deadline` is a point in time, `max_wait` counts from arrival, and of both the earlier holds."""
    assert _read({"prompt": "hi", "max_wait": "2.5"}).deadline_ms == ENTERED_MS + 2_500
    assert _read({"prompt": "hi", "max_wait": "2.5", "deadline": "1700000001"}).deadline_ms == 1_700_000_001_000
    assert _read({"prompt": "hi", "max_wait": "1", "deadline": "1700000009"}).deadline_ms == ENTERED_MS + 1_000
    assert _read({"prompt": "hi", "deadline": "0.0001"}).deadline_ms == 1


@pytest.mark.parametrize("own", ["order-7", "x" * 128])
def test_an_error_carries_the_producers_id(own: str) -> None:
    """An unreadable entry is answered under its own id where that can be read, else under the entry's."""
    assert readable_id({b"id": own.encode(), b"body": b"\xff"}, ENTRY) == own
    for bad in (b"", b"\xff", b"a b", b"x" * 129, "é".encode()):
        assert readable_id({b"id": bad}, ENTRY) == ENTRY
    assert readable_id({}, ENTRY) == ENTRY


def test_size_is_checked_before_anything_is_parsed() -> None:
    """A body over the limit is refused by its size, in words that name both numbers."""
    pool = Pool(max_body_bytes=1_000)
    for fields in ({"prompt": "x" * 1_001}, {"body": "x" * 1_001}):
        assert str(_refused(dict(fields), pool)).endswith("has 1,001 bytes; at most 1,000 are taken")


def test_what_no_deployment_can_grant_is_refused() -> None:
    """A request beyond the limit is told what it needs and what there is, with its own data kept."""
    error = _refused({**_body(',"max_tokens":4000,"n":4'), "id": "big", "metadata": '{"a":1}', "stream": "1"})
    assert isinstance(error, TooLarge)
    assert error.code == "too_large_for_limit"
    assert "16,008 tokens" in str(error)
    assert "15,000" in str(error)
    assert (error.request.id, bytes(error.request.metadata), error.request.stream) == ("big", b'{"a":1}', True)


def test_the_largest_deployment_sets_the_size() -> None:
    """Any deployment may take a request, so the largest sets its size; one without a token limit takes all."""
    small, large, free = Deployment(name="a", tpm=100), Deployment(name="b", tpm=1_001), Deployment(name="c", rpm=5)
    assert largest_request(Pool(deployments=(small, large))) == 500
    assert largest_request(Pool(deployments=(small, free))) is None
    assert largest_request(Pool(deployments=(small, free), max_request_tokens=7)) == 7
    assert _read(_body(',"max_tokens":9000000'), UNLIMITED).output_tokens == 9_000_000


def test_two_thousand_fields_do_no_harm() -> None:
    """An entry with two thousand fields that aren't ours is a request like any other."""
    fields: dict[str, str | bytes] = {f"field_{number}": "x" for number in range(2_000)}
    assert _read({**fields, "prompt": "hi"}).id == ENTRY


@pytest.mark.parametrize("text", ["a" * 1_000_000, "的" * 340_000, "\U0001f600" * 250_000, " " * 1_000_000])
def test_a_megabyte_without_a_space_is_read_at_once(text: str) -> None:
    """The largest prompt is judged within 20 ms, so that no other request waits for it."""
    times = []
    for _ in range(5):
        began = time.thread_time()
        read_entry({b"prompt": text.encode()}, entry_id=ENTRY, entered_ms=ENTERED_MS, pool=UNLIMITED, keys=KEYS)
        times.append(time.thread_time() - began)
    assert min(times) < 0.02


_NAMES = b"prompt body id tenant class task complexity deadline max_wait stream reply_to metadata v".split()
_KEYS = st.sampled_from(
    ("messages", "role", "content", "max_tokens", "n", "tools", "type", "text", "image_url", "name")
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS | st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)

_MESSAGES = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"])}, optional={"content": _JSON})
_BODIES = st.fixed_dictionaries(
    {"messages": st.lists(_MESSAGES, min_size=1, max_size=3) | _JSON},
    optional=dict.fromkeys(("n", "max_tokens", "tools", "functions", "response_format", "stream"), _JSON),
)
_VALUES = st.binary(max_size=40) | _JSON.map(msgspec.json.encode) | _BODIES.map(msgspec.json.encode)


@settings(deadline=None)  # the first one loads the vocabulary
@given(st.dictionaries(st.sampled_from(_NAMES) | st.binary(max_size=8), _VALUES, max_size=6))
def test_any_bytes_are_survived(fields: dict[bytes, bytes]) -> None:
    """Whatever stands in an entry becomes a request or a typed error, and has an id to answer to."""
    assert 1 <= len(readable_id(fields, ENTRY)) <= 128
    try:
        request = read_entry(fields, entry_id=ENTRY, entered_ms=ENTERED_MS, pool=POOL, keys=KEYS)
    except RequestError:
        return
    assert decode(encode(request)) == request


@settings(deadline=None)  # the first one loads the vocabulary
@given(_BODIES)
def test_any_body_is_survived(body: dict[str, Any]) -> None:
    """Whatever stands in a body becomes a request with one cap and without `stream`, or a typed error."""
    fields = {b"body": msgspec.json.encode(body)}
    try:
        request = read_entry(fields, entry_id=ENTRY, entered_ms=ENTERED_MS, pool=UNLIMITED, keys=KEYS)
    except RequestError:
        return
    chat = request.chat()
    assert len({"max_tokens", "max_completion_tokens"} & chat.keys()) == 1
    assert "stream" not in chat
    assert chat["messages"] == body["messages"]
    assert request.prompt_tokens >= 7
