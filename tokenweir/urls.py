"""What a Redis URL says: which kind of Redis, whom to ask where it is, and how to speak to it.

    redis://[user:password@]host[:6379][/db]                       one server
    unix:///path/to/socket
    redis+sentinel://[user:password@]host[:26379],.../NAME[/db]    the primary that Sentinels know as NAME
    redis+cluster://[user:password@]host[:6379],...                a Cluster

`rediss` in place of `redis` is TLS. No text from here ever holds a password: what can't be read isn't quoted.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

from redis.asyncio.connection import Connection, parse_url

from tokenweir.errors import ConfigError

Kind = Literal["fixed", "sentinel", "cluster"]

FORMS: Final = ("redis://", "rediss://", "unix://", "redis+sentinel://", "redis+cluster://")
_LISTED: Final = re.compile(r"(rediss?)\+(sentinel|cluster)://")
_PLAIN: Final = re.compile(r"(redis|rediss|unix)://")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:@/\[\]]+)(?::([0-9]{1,5}))?\Z")
_PORTS: Final = {"sentinel": 26379, "cluster": 6379}
# Others would take away what the connection rests on: its own time limits, no repeats, bytes.
_OPTIONS: Final = frozenset(
    (
        *("db", "username", "password", "client_name", "protocol", "socket_connect_timeout", "socket_keepalive"),
        *("ssl_keyfile", "ssl_certfile", "ssl_password", "ssl_cert_reqs", "ssl_check_hostname", "ssl_ca_certs"),
        *("ssl_ca_data", "ssl_ca_path", "ssl_min_version", "ssl_ciphers"),
        *("ssl_include_verify_flags", "ssl_exclude_verify_flags"),
    )
)
_ESCAPES: Final = "write special characters of a password as %40 for @, %2F for /, %3F for ?"
_ASKERS: Final = ("sentinel_username", "sentinel_password")


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


# A fixed place: wherever the URL's options lead.
HERE: Final = Address("", 0)


class Named(NamedTuple):
    """What a URL names.

    Attributes:
        seeds: whom to ask; empty for one server. service: the primary's name among Sentinels.
        options: of connections to servers, as redis-py takes them. asking: of those to Sentinels.
    """

    kind: Kind
    seeds: tuple[Address, ...]
    service: str
    options: dict[str, Any]
    asking: dict[str, Any]


def read_url(url: str) -> Named:
    """What `url` says.

    Raises:
        ConfigError: it isn't of a form we know.
    """
    if url.startswith("unix:/") and not url.startswith("unix://"):
        url = "unix://" + url.removeprefix("unix:")
    listed = _LISTED.match(url)
    if listed:
        return _listed(
            url, tls=listed[1].lower() == "rediss", kind="sentinel" if "sen" in listed[2].lower() else "cluster"
        )
    if not _PLAIN.match(url):
        raise ConfigError(f"Redis URL {masked_url(url)!r} must start with one of: embedded: {' '.join(FORMS)}")
    return Named("fixed", (), "", _options(url), {})


def masked_url(url: str) -> str:
    """`url` without its passwords, wherever they stand: before the last `@`, or in the query."""
    url = re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url) if "://" in url else re.sub(r".*@", "***@", url)
    return re.sub(r"([?&][a-z_]*(?:password|token|key)=)[^&]*", r"\1***", url, flags=re.IGNORECASE)


def _listed(url: str, *, tls: bool, kind: Literal["sentinel", "cluster"]) -> Named:
    rest, _, query = url.partition("://")[2].partition("?")
    user, _, tail = rest.rpartition("@")
    hosts, _, path = tail.partition("/")
    seeds = tuple(_address(host, kind) for host in hosts.split(","))
    service, _, db = path.partition("/") if kind == "sentinel" else ("", "", path)
    if kind == "sentinel" and not service:
        raise ConfigError(f"Redis URL: a {kind} URL ends with the primary's name: redis+sentinel://host:26379/NAME")
    if kind == "cluster" and db not in ("", "0"):
        raise ConfigError("Redis URL: a Cluster has only database 0: leave out what follows the hosts")
    if db and not db.isdigit():
        raise ConfigError("Redis URL: what follows the primary's name is the number of a database")
    options = _options(f"{'rediss' if tls else 'redis'}:///{db}?{query}", more=_ASKERS if kind == "sentinel" else ())
    username, _, password = user.partition(":")
    options |= {name: unquote(text) for name, text in (("username", username), ("password", password)) if text}
    own = {name.removeprefix("sentinel_"): options.pop(name) for name in _ASKERS if name in options}
    if not own:
        own = {name: options[name] for name in ("username", "password") if name in options}
    shared = {name: value for name, value in options.items() if name not in ("db", "username", "password")}
    return Named(
        kind, seeds, unquote(service), options, {**shared, **{name: each for name, each in own.items() if each}}
    )


def _address(text: str, kind: Literal["sentinel", "cluster"]) -> Address:
    found = _HOST.match(text)
    if not found or int(found[2] or 1) > 65535:
        raise ConfigError(f"Redis URL: its hosts can't be read: give host:port,host:port; {_ESCAPES}")
    return Address(unquote(found[1].strip("[]")), int(found[2] or _PORTS[kind]))


def _options(url: str, *, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """The options of a plain URL, by redis-py's own reading."""
    query = url.partition("?")[2]
    names = {part.partition("=")[0] for part in query.split("&") if part}
    known = _OPTIONS.union(more)
    unknown = sorted(names - known)
    # Behind a `?` in a password anything may follow: then it isn't an option's name that would be quoted.
    if unknown and "@" not in query:
        raise ConfigError(f"Redis URL: unknown option {unknown[0]!r}; there are: {', '.join(sorted(known))}")
    # An empty value means something here (Sentinels without a password), and is dropped by redis-py.
    empty = {name: "" for name in names if name in more}
    try:
        read = parse_url(url)
    except ValueError:  # its words may hold a part of the password
        read = None
    if read is None or unknown:
        raise ConfigError(
            f"Redis URL {masked_url(url)!r} can't be read: look at its port and the values of its options; {_ESCAPES}"
        )
    return {"connection_class": Connection, **empty, **read}
