"""What of a producer's own body is changed on the way in, and what isn't."""

from __future__ import annotations

import msgspec
import pytest

from pipeline.body import Body, from_prompt, read_body
from tokenweir.errors import RequestError


def _read(raw: str | bytes) -> Body:
    return read_body(raw if isinstance(raw, bytes) else raw.encode(), cap=111, cap_name="max_tokens")


def _hello(extra: str) -> str:
    return '{"messages":[{"role":"user","content":"hi"}]' + extra + "}"


def _said(escaped: str) -> str:
    return '{"messages":[{"role":"user","content":"' + escaped + '"}]}'


def _content(body: Body) -> str:
    content: str = msgspec.json.decode(body.raw)["messages"][0]["content"]
    return content


def test_a_body_passes_through_untouched() -> None:
    """A body that needs no change reaches the provider byte for byte, unknown fields included."""
    raw = '{ "messages": [{"role":"user","content":"hi"}], "seed": 12345678901234567890123, "max_tokens": 5, "x": 1e2}'
    assert _read(raw).raw == raw.encode()


def test_only_the_cap_is_changed() -> None:
    """Where a cap is added the rest of the body keeps its digits, its escapes and its order."""
    raw = _read(r'{"seed":1.50,"messages":[{"role":"user","content":"\u0041"}],"x":{"a":1,"a":2},"stream":false}').raw
    assert raw == rb'{"seed":1.50,"messages":[{"role":"user","content":"\u0041"}],"x":{"a":1,"a":2},"max_tokens":111}'


@pytest.mark.parametrize(
    ("extra", "sent", "cap", "n"),
    [
        ("", {"max_tokens": 111}, 111, 1),
        (',"max_tokens":5', {"max_tokens": 5}, 5, 1),
        (',"max_completion_tokens":5', {"max_completion_tokens": 5}, 5, 1),
        (',"max_tokens":1,"max_completion_tokens":700', {"max_completion_tokens": 700}, 700, 1),
        (',"max_tokens":700,"max_completion_tokens":1', {"max_completion_tokens": 700}, 700, 1),
        (',"max_tokens":null,"max_completion_tokens":5', {"max_completion_tokens": 5}, 5, 1),
        (',"max_tokens":null', {"max_tokens": 111}, 111, 1),
        (',"n":5,"max_tokens":1000', {"n": 5, "max_tokens": 1000}, 1000, 5),
        (',"n":null,"max_tokens":5', {"n": None, "max_tokens": 5}, 5, 1),
        (',"max_tokens":5,"max_tokens":6', {"max_tokens": 6}, 6, 1),
        (',"max_tokens":5,"stream":true,"stream_options":{"include_usage":true}', {"max_tokens": 5}, 5, 1),
        (',"max_tokens":5,"stream":null', {"max_tokens": 5}, 5, 1),
    ],
)
def test_exactly_one_cap_is_sent_and_reserved(extra: str, sent: dict[str, int], cap: int, n: int) -> None:
    """What is reserved for an answer is what the provider may write: the largest cap given."""
    body = _read(_hello(extra))
    assert msgspec.json.decode(body.raw) == {"messages": [{"role": "user", "content": "hi"}], **sent}
    assert (body.cap, body.n, body.stream) == (cap, n, "true" in extra)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "true", '"256"', "[]", "{}", "1e999", "NaN", "Infinity", "9" * 30])
def test_a_bad_number_is_an_error(name: str, value: str) -> None:
    """A cap or count that is no whole number of at least 1 is refused in words, never guessed."""
    with pytest.raises(RequestError, match=rf"`body\.{name}` must be|`body` isn't valid JSON") as caught:
        _read(_hello(f',"{name}":{value}'))
    assert caught.value.code == "invalid_request"


@pytest.mark.parametrize(
    "content", ["a\x00b", "\x01\x02", "\ufeffhi", "a\r\nb", "\u2028", "<|endoftext|>", "\U0001f497"]
)
def test_prompts_arrive_unchanged(content: str) -> None:
    """NUL, control characters, a byte-order mark and control-token text reach the model as they were written."""
    assert _content(from_prompt(content, cap=5, cap_name="max_tokens")) == content
    assert _content(_read(msgspec.json.encode({"messages": [{"role": "user", "content": content}]}))) == content


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"\ud83d", "\ufffd"),
        (r"a\udc97b", "a\ufffdb"),
        (r"\ud83d\udc97", "\U0001f497"),
        (r"\ud83d\ud83d\udc97", "\ufffd\U0001f497"),
        (r"\udc97\ud83d", "\ufffd\ufffd"),
        (r"\\ud83d \ud83d", "\\ud83d \ufffd"),
        (r"\\\ud83d", "\\\ufffd"),
        (r"\uD83Dx", "\ufffdx"),
    ],
)
def test_half_surrogates_are_mended(escaped: str, text: str) -> None:
    """Half a surrogate pair becomes U+FFFD; a whole one, and an escaped backslash, stay what they are."""
    assert _content(_read(_said(escaped))) == text


def test_a_byte_order_mark_before_json_is_dropped() -> None:
    """A body from an editor that writes a byte-order mark is taken."""
    assert _content(_read(b"\xef\xbb\xbf" + _hello("").encode())) == "hi"


def test_the_last_of_equal_keys_counts() -> None:
    """A key that stands twice in a body means its last value."""
    body = _read('{"messages":[],"messages":[{"role":"user2","role":"user","content":"a","content":"b"}]}')
    assert _content(body) == "b"
