"""Entries that are not ours, or not usable: each gets its answer, and nobody else notices (C40, C42, C44, C46, C48)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.integration.rig import Rig, open_rig
from tokenweir.errors import ERROR_TYPES

CHAT = {"messages": [{"role": "user", "content": "hello"}]}


def _body(**more: Any) -> dict[str, bytes]:
    return {"body": json.dumps({**CHAT, **more}).encode()}


# What is refused because nobody could read it: a dead letter, and `invalid_request` for the caller.
UNREADABLE: dict[str, Mapping[Any, Any]] = {
    "not json": {"body": "not json"},
    "a number": {"body": "12345"},
    "a text": {"body": '"text"'},
    "null": {"body": "null"},
    "a list": {"body": "[]"},
    "an empty object": {"body": "{}"},
    "another field only": {"foo": "bar"},
    "an empty prompt": {"prompt": ""},
    "an empty body": {"body": ""},
    "messages as text": {"body": '{"messages":"hi"}'},
    "no messages": {"body": '{"messages":[]}'},
    "a message as text": {"body": '{"messages":["hi"]}'},
    "an unknown role": {"body": '{"messages":[{"role":"user2","content":"x"}]}'},
    "a number as content": {"body": '{"messages":[{"role":"user","content":7}]}'},
    "prompt and body": {"prompt": "x", **_body()},
    "binary prompt": {"prompt": b"\xff\xfe\x00\x80"},
    "binary body": {"body": b"\x80\x81{"},
    "binary field names": {b"\xff\xfe": b"\xff", "prompt": ""},
    "cap NaN": {"body": json.dumps({**CHAT, "max_tokens": float("nan")})},
    "cap infinite": {"body": json.dumps({**CHAT, "max_tokens": float("inf")})},
    "cap negative": _body(max_tokens=-5),
    "cap zero": _body(max_tokens=0),
    "cap as text": _body(max_tokens="100"),
    "cap huge": _body(max_tokens=10**30),
    "cap fraction": _body(max_completion_tokens=1.5),
    "n zero": _body(n=0),
    "n true": _body(n=True),
    "stream as text": _body(stream="yes"),
    "id of 10 kB": {"id": "x" * 10_000, "prompt": "x"},
    "id with a space": {"id": "a b", "prompt": "x"},
    "class unknown": {"class": "vip", "prompt": "x"},
    "deadline as text": {"deadline": "tomorrow", "prompt": "x"},
    "max_wait negative": {"max_wait": "-1", "prompt": "x"},
    "max_wait NaN": {"max_wait": "nan", "prompt": "x"},
    "metadata not an object": {"metadata": "[1]", "prompt": "x"},
    "metadata of 5 kB": {"metadata": json.dumps({"a": "b" * 5000}), "prompt": "x"},
    "reply_to elsewhere": {"reply_to": "tokenweir:{main}:ingest", "prompt": "x"},
    "no version": {"v": "two", "prompt": "x"},
    "nested too deeply": {"body": b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}"},
    "more than a body may have": {"body": b'{"messages":"' + b"a" * 1_100_000 + b'"}'},
    "2,000 fields and none of ours": {f"f{i}": "v" for i in range(2000)},
    "9,000 fields and none of ours": {f"f{i}": "v" for i in range(9000)},
}
# What can be read and can't ever be granted.
TOO_LARGE: dict[str, Mapping[Any, Any]] = {
    "cap above the limit": _body(max_tokens=150_000),
    "a megabyte of text": {"prompt": "word " * 209_000},
    "n times cap": _body(max_tokens=5_000, n=100),
}
# What looks strange and is fine.
FINE: dict[str, Mapping[Any, Any]] = {
    "unknown fields": {"prompt": "x", "colour": "red"},
    "2,000 unknown fields": {"prompt": "x", **{f"f{i}": "v" for i in range(2000)}},
    "an unknown model": _body(model="no-such-model"),
    "c48: NUL and controls": {"prompt": "a\x00b\x01c\x1b\r\nd"},
    "c48: a BOM in front": {"body": b"\xef\xbb\xbf" + _body()["body"]},
    "c42: half a surrogate": {"body": b'{"messages":[{"role":"user","content":"\\ud83d alone"}]}'},
    "c42: a whole surrogate": {"body": b'{"messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'},
    "c44: control tokens": {"prompt": "<|endoftext|><|im_start|>system"},
    "c46: a letter without spaces": {"prompt": "a" * 20_000},
}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """One worker: if it fell over, everybody would know. 200,000 tokens per window."""
    with open_rig(tpm=200_000) as opened:
        opened.run()
        opened.ask("the first one warms up")
        yield opened


def _between_good_ones(rig: Rig, fields: Mapping[Any, Any]) -> str:
    """Add `fields` between two good requests, and wait for all three; returns its id."""
    first = rig.add("good, before", task="intent")
    bad, last = rig.add_raw(fields), rig.add("good, after", task="intent")
    good = rig.wait_for([first, bad, last])
    assert (good[0].status, good[2].status) == ("ok", "ok")
    return bad


def _letter(rig: Rig) -> dict[bytes, bytes]:
    """The newest dead letter."""
    fields = rig.command("XREVRANGE", rig.keys.key("dead"), "+", "-", "COUNT", 1)[0][1]
    return fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))


def _premium_charged(rig: Rig) -> int:
    return int(rig.budget()["tpm.cum"])


@pytest.mark.parametrize("name", UNREADABLE)
def test_c40_what_cannot_be_read_is_kept_and_answered(rig: Rig, name: str) -> None:
    """An unreadable entry: typed error for its caller, a whole copy in `dead`, nothing charged, nobody disturbed."""
    fields = UNREADABLE[name]

    bad = _between_good_ones(rig, fields)

    result = rig.results[bad][0]
    error = json.loads(bytes(result.body))["error"]
    assert (result.status, result.code) == ("error", "invalid_request")
    assert (error["type"], error["code"]) == (ERROR_TYPES["invalid_request"], "invalid_request")
    assert len(error["message"]) < 500
    letter = _letter(rig)
    assert (letter[b"reason"], letter[b"stream"]) == (b"invalid_request", b"ingest")
    raw = {_bytes(name): _bytes(value) for name, value in fields.items()}
    assert _kept(letter) == raw


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_can_never_be_granted_is_answered(rig: Rig, name: str) -> None:
    """A request above the limit gets a typed error at once, and nothing is charged for it."""
    bad = _between_good_ones(rig, TOO_LARGE[name])

    assert (rig.results[bad][0].status, rig.results[bad][0].code) == ("error", "too_large_for_limit")


@pytest.mark.parametrize("name", FINE)
def test_what_looks_strange_is_served(rig: Rig, name: str) -> None:
    """Unknown fields, control characters, half a surrogate pair and control tokens are no reason to refuse."""
    assert rig.results[_between_good_ones(rig, FINE[name])][0].status == "ok"


def test_c48_of_a_field_given_twice_the_last_counts(rig: Rig) -> None:
    """Where a field stands twice the last one wins, as documented."""
    words = ("prompt", "[first] one", "prompt", "[second] one", "complexity", "complex")
    entry = rig.command("XADD", rig.keys.key("ingest"), "*", *words)

    rig.wait_for([entry.decode()])

    assert (rig.calls("[first]"), rig.calls("[second]")) == (0, 1)


def test_c48_what_is_put_in_is_what_the_model_reads(rig: Rig) -> None:
    """NUL, control characters, line ends and a BOM reach the provider as they were written."""
    text = "\ufeff[as it is] a\x00b\x01c\x1b\r\nd\n"

    rig.wait_for([rig.add_raw({"prompt": text, "complexity": "complex"})])

    assert rig.calls(text) == 1


def test_bad_input_costs_nothing_and_ends_nobody(rig: Rig) -> None:
    """All of it at once: the budget is untouched, the worker process is the same, and it has logged no failure."""
    pids, charged = rig.runs[0].live, _premium_charged(rig)

    results = rig.wait_for([rig.add_raw({**fields, "id": f"bad-{i}"}) for i, fields in enumerate(_all_bad())])

    assert {result.status for result in results} == {"error"}
    assert _premium_charged(rig) == charged
    assert rig.runs[0].live == pids
    assert "stage_failed" not in rig.runs[0].text
    assert "redis_outage_began" not in rig.runs[0].text
    rig.assert_clean()


def _all_bad() -> list[Mapping[Any, Any]]:
    return [fields for fields in (*UNREADABLE.values(), *TOO_LARGE.values()) if "id" not in fields]


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _kept(letter: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The original fields of a dead letter; more than one script call can write stand there as one JSON list."""
    packed = letter.get(b"fields")
    if packed is not None:
        flat = [text.encode() for text in json.loads(packed)]
        return dict(zip(flat[::2], flat[1::2], strict=True))
    return {key.removeprefix(b"field:"): value for key, value in letter.items() if key.startswith(b"field:")}
