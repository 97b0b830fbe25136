"""Redis URLs: what each form says, what is refused, and that nothing shows a password."""

from __future__ import annotations

import pytest

from tokenweir.connection import Connection, connect
from tokenweir.errors import ConfigError, StoreUnavailable
from tokenweir.keys import Keys
from tokenweir.urls import Address, masked_url, read_url

pytestmark = pytest.mark.anyio


def test_a_sentinel_url_names_the_sentinels_the_primary_and_the_database() -> None:
    """Hosts may lack their port and may be IPv6; the user is that of the servers and of the Sentinels alike."""
    named = read_url("redis+sentinel://me:p%40ss@a:1,b,[::1]:3/weir/4")

    assert (named.kind, named.service, named.options["db"]) == ("sentinel", "weir", 4)
    assert named.seeds == (Address("a", 1), Address("b", 26379), Address("::1", 3))
    assert (named.options["username"], named.options["password"]) == ("me", "p@ss")
    assert (named.asking["username"], named.asking["password"], "db" in named.asking) == ("me", "p@ss", False)


@pytest.mark.parametrize(
    ("query", "username", "password"),
    [
        ("?sentinel_username=them&sentinel_password=their%26s", "them", "their&s"),
        ("?sentinel_password=theirs", None, "theirs"),
        ("?sentinel_username=&sentinel_password=", None, None),
    ],
)
def test_sentinels_may_have_a_user_of_their_own(query: str, username: str | None, password: str | None) -> None:
    """Named apart, it is theirs alone; empty means none."""
    named = read_url(f"redis+sentinel://me:mine@a/weir{query}")

    assert (named.asking.get("username"), named.asking.get("password")) == (username, password)
    assert (named.options["username"], named.options["password"]) == ("me", "mine")
    assert not [name for name in named.options if "sentinel" in name]


def test_a_cluster_url_names_nodes() -> None:
    """Any of its nodes will do."""
    named = read_url("redis+cluster://:secret@a,b:7001")

    assert (named.kind, named.seeds) == ("cluster", (Address("a", 6379), Address("b", 7001)))
    assert named.options["password"] == "secret"


@pytest.mark.parametrize("form", ["rediss://a", "rediss+sentinel://a/weir", "rediss+cluster://a"])
def test_rediss_is_tls_everywhere(form: str) -> None:
    """The servers and those who are asked for them are spoken to by TLS alike, with the same options."""
    named = read_url(f"{form}?ssl_cert_reqs=none")

    for options in filter(None, (named.options, named.asking)):
        assert options["connection_class"].__name__ == "SSLConnection"
        assert options["ssl_cert_reqs"] == "none"


_WRONG = [
    ("redsi://host", "must start with one of"),
    ("host:6379", "must start with one of"),
    (":hidden@host", "must start with one of"),
    ("http://me:hidden@host", "must start with one of"),
    ("redis+sentinel://a,b", "ends with the primary's name"),
    ("redis+sentinel://a/weir/first", "number of a database"),
    ("redis+sentinel:///weir", "hosts can't be read"),
    ("redis+sentinel://:hidden@a:port/weir", "hosts can't be read"),
    ("redis+cluster://a,,b", "hosts can't be read"),
    ("redis+cluster://a:70000", "hosts can't be read"),
    ("redis+cluster://:hid?den@a:1", "hosts can't be read"),
    ("redis+cluster://a/1", "only database 0"),
    ("redis://:hid#den@a", "%40 for @"),
    ("redis://:hid?den@a", "%40 for @"),
    ("redis://a:port", "can't be read"),
    ("redis://a?db=first", "can't be read"),
    ("redis://a?socket_timeout=5", "unknown option 'socket_timeout'"),
    ("redis://a?sentinel_password=hidden", "unknown option 'sentinel_password'"),
    ("rediss://a?ssl_ca_certs=/nowhere/ca.pem", "ssl_ options can't be used"),
    ("rediss://a?ssl_cert_reqs=maybe", "ssl_ options can't be used"),
]


@pytest.mark.parametrize(("url", "said"), _WRONG, ids=[url for url, _ in _WRONG])
def test_what_cant_be_read_is_one_line_without_its_password(url: str, said: str) -> None:
    """A mistyped URL says what is wrong with it, and nothing of what may be a secret."""
    with pytest.raises(ConfigError) as caught:
        connect(url)

    text = str(caught.value)
    assert said in text
    assert "\n" not in text
    assert not [part for part in ("hidden", "hid", "den") if part in text]


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:secret@host/0",
        "redis://me:se@secret@host/0",
        "rediss://host?ssl_password=secret",
        "redis+sentinel://me:secret@a:1,b:2/weir?sentinel_username=x&sentinel_password=secret",
        "redis+cluster://:secret@a:1,b:2",
        "rediss+sentinel://a/weir?SENTINEL_PASSWORD=secret",
        ":secret@host",
    ],
)
def test_people_see_urls_without_passwords(url: str) -> None:
    """What is shown keeps the hosts and the user's name."""
    shown = masked_url(url)

    assert "secret" not in shown
    assert "***" in shown
    assert [host for host in ("host", "a:1", "a/") if host in shown]


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:secret@127.0.0.1:1",
        "redis+sentinel://me:secret@127.0.0.1:1/weir?sentinel_password=secret",
        "redis+cluster://me:secret@127.0.0.1:1,127.0.0.1:2",
        "rediss+cluster://me:secret@127.0.0.1:1",
    ],
)
async def test_nobody_there_is_told_without_passwords(url: str) -> None:
    """An outage names where nobody answered."""
    connection = Connection(connect(url), Keys())

    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1") as caught:
        await connection.command("PING")

    await connection.aclose()
    assert "secret" not in str(caught.value)
