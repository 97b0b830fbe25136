"""Requests between stages: what is written is read again, whatever release wrote it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.message import WIRE_VERSION, NewerVersion, Request, decode, encode

KNOWN = {field.encode_name for field in msgspec.structs.fields(Request)}
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
NAMES = st.text(min_size=1).filter(lambda name: name not in KNOWN)


def _raw(**fields: Any) -> bytes:
    return msgspec.json.encode({"id": "a", "body": {}, **fields})


@given(rest=st.dictionaries(NAMES, PLAIN, max_size=4), attempt=st.integers(1, 9))
def test_c67_fields_of_a_newer_release_pass_through_unchanged(rest: dict[str, Any], attempt: int) -> None:
    """What this release doesn't know it writes again as it was, also after a change of its own."""
    request = decode(_raw(**rest))

    again = msgspec.json.decode(encode(msgspec.structs.replace(request, attempt=attempt)))

    assert {name: value for name, value in again.items() if name not in KNOWN} == rest
    assert (again["id"], again.get("attempt", 1)) == ("a", attempt)
    assert msgspec.json.decode(encode(request)) == msgspec.json.decode(_raw(**rest))


@pytest.mark.parametrize("changed", [
    {}, {"hint": 1}, {"class": "urgent"}, {"body": None}, {"prompt_tokens": "many"}, {"id": {"a": 1}},
])  # fmt: skip
def test_c67_a_newer_version_is_told_from_a_broken_request(changed: dict[str, Any]) -> None:
    """Whatever a newer release changes, its version says so first; its id is named where it can be read."""
    with pytest.raises(NewerVersion) as caught:
        decode(_raw(v=WIRE_VERSION + 1, **changed))

    assert caught.value.request_id == ("" if "id" in changed else "a")


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{", b'"text"', _raw(v="2"), _raw(v=None), _raw(id=7), _raw(attempt="x", hint=1)]
)
def test_what_is_no_request_is_refused(raw: bytes) -> None:
    """Anything else that isn't a request of ours is an error, and not of a newer version."""
    with pytest.raises(msgspec.DecodeError) as caught:
        decode(raw)

    assert not isinstance(caught.value, NewerVersion)
