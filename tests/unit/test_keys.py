"""Every key name of a pool."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenweir.keys import GROUPS, PERMANENT, Keys, valid_id

KEYS = Keys("main")


def test_all_keys_of_a_pool_carry_one_hash_tag() -> None:
    """One pool lives in one cluster slot, so that one script can touch all of it."""
    names = [KEYS.key("ingest"), KEYS.status("a"), KEYS.reply("a"), KEYS.inbox("a"), Keys("main").key("limits")]

    assert {name[: name.index("}") + 2] for name in names} == {"tokenweir:{main}:"}
    assert KEYS.key("ingest") == "tokenweir:{main}:ingest"


def test_pools_and_prefixes_keep_apart() -> None:
    """Two pools, or two installations with prefixes of their own, share nothing in one Redis."""
    roots = {Keys("a").root, Keys("b").root, Keys("a", prefix="other").root}

    assert len(roots) == 3


@pytest.mark.parametrize("name", ["", "a}b", "a{b", "a:b", "a b", "a\n", "ä", "a" * 65, "*", "a/b"])
def test_names_that_could_break_out_of_the_tag_are_refused(name: str) -> None:
    """A pool or prefix is letters, digits, `_`, `.` and `-` only."""
    with pytest.raises(ValueError, match="may hold letters"):
        Keys(name)
    with pytest.raises(ValueError, match="may hold letters"):
        Keys("main", prefix=name)


@given(request_id=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=128))
def test_an_id_only_extends_its_pools_prefix(request_id: str) -> None:
    """Whatever an id holds, its keys are its pool's, and no id can be mistaken for an inner key."""
    assert valid_id(request_id)

    for key in (KEYS.status(request_id), KEYS.reply(request_id)):
        assert key.startswith(KEYS.root)
        assert key.endswith(f":{request_id}")
    assert KEYS.status(request_id) not in {KEYS.key(name) for name in (*GROUPS, "limits", "dead", "responses")}


@pytest.mark.parametrize("text", ["", " ", "a b", "a\n", "\n", "a\x00", "ä", "a" * 129, "a\x7f"])
def test_ids_are_visible_ascii_of_bounded_length(text: str) -> None:
    """Spaces, control characters, other alphabets and endless ids are refused before they become keys."""
    assert not valid_id(text)


def test_an_inbox_is_known_by_its_own_part() -> None:
    """Only a key of this pool's inboxes gives a name; what isn't a plain name gives none."""
    assert KEYS.inbox_name(KEYS.inbox("host-1")) == "host-1"

    others = [KEYS.key("ingest"), Keys("other").inbox("a"), KEYS.inbox("a b"), KEYS.inbox(""), "a"]
    assert [KEYS.inbox_name(key) for key in others] == [None] * 5


def test_what_lives_for_ever_is_listed() -> None:
    """Limits, budgets and streams have no expiry; everything a request leaves has one."""

    def permanent(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in PERMANENT)

    assert all(map(permanent, (*GROUPS, "limits", "budget:primary", "responses", "dead", "closed")))
    assert not any(map(permanent, ("status:a", "reply:a", "inbox:a", "grants", "tenants", "backlog:meta", "slots")))
