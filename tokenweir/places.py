"""Where the primary of a pool is now, and connections to it.

One server stays where its URL says. Of several, the Sentinels are asked, or the nodes of a Cluster, in which all
keys of a pool live in one slot: so a pool has one place at any time. Who finds that a place has changed tells it
here (`lost`, `moved`), and asks again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from ssl import SSLError
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, ConnectionError, NoPermissionError, ReadOnlyError, RedisError

from tokenweir.errors import ConfigError
from tokenweir.urls import HERE, Address, Named, read_url
from tokenweir.within import Within

# Of one who is asked: a dead one must not keep the others from being asked while a caller still waits.
_ANSWER_WITHIN_S: Final = 1.0
_MOST_KNOWN: Final = 64


class Places(ABC):
    """Where one pool's primary is."""

    def __init__(self) -> None:
        self.now: Address | None = None  # None = nobody knows, ask

    @abstractmethod
    async def find(self) -> Address:
        """Ask where the primary is.

        Raises:
            ConnectionError: nobody could tell.
        """

    def moved(self, address: Address) -> bool:
        """Note that a node says the primary is there; False = it stays where it is."""
        self.now = address
        return True

    def lost(self) -> bool:
        """Note that it isn't where we thought; False = it can't be anywhere else."""
        self.now = None
        return True


class OnePlace(Places):
    """One server: what is behind its address may change, the address doesn't."""

    def __init__(self) -> None:
        super().__init__()
        self.now = HERE

    async def find(self) -> Address:
        """The one address."""
        return HERE

    def moved(self, address: Address) -> bool:
        """Never: a node of a Cluster that was named as one server stays an error."""
        return False

    def lost(self) -> bool:
        """Never."""
        return False


class _Asked(Places):
    """A place that others know."""

    def __init__(self, named: Named) -> None:
        super().__init__()
        self._seeds = list(named.seeds)
        self._link_class: type[AbstractConnection] = named.options["connection_class"]
        self._options = {**_plain(named.asking), "socket_connect_timeout": _ANSWER_WITHIN_S}

    async def find(self) -> Address:
        """Ask one after the other, beginning with the one that answered last."""
        said: list[str] = []
        for seed in tuple(self._seeds):
            try:
                with Within(_ANSWER_WITHIN_S):
                    found = self._read(seed, await self._ask(seed))
            except (OSError, RedisError) as error:  # a TimeoutError is an OSError
                said.append(f"{seed}: {self._explain(error)}")
                self._last(seed)
                continue
            if isinstance(found, Address):
                self.now = found
                return found
            said.append(f"{seed}: {found}")
            self._last(seed)
        raise ConnectionError(f"{self._sought}: {'; '.join(said)}")

    def lost(self) -> bool:
        """Ask another one next: who told us may know no better."""
        if self.now is not None:
            self._last(self._seeds[0])
        return super().lost()

    def _last(self, seed: Address) -> None:
        if seed in self._seeds:  # another call may have heard of other nodes meanwhile
            self._seeds.remove(seed)
            self._seeds.append(seed)

    async def _ask(self, seed: Address) -> Any:
        link: AbstractConnection = self._link_class(host=seed.host, port=seed.port, **self._options)  # type: ignore[call-arg]
        try:
            await link.connect()  # type: ignore[no-untyped-call]
            await link.send_command(*self._question)
            return await link.read_response()
        finally:
            await hang_up(link)

    def _explain(self, error: Exception) -> str:
        return str(error) or f"no answer within {_ANSWER_WITHIN_S:g} s"

    # What differs

    _sought: str
    _question: tuple[str, ...]

    @abstractmethod
    def _read(self, seed: Address, reply: Any) -> Address | str:
        """The primary's address, or why there is none."""


class OfSentinels(_Asked):
    """The primary that Sentinels watch."""

    def __init__(self, named: Named) -> None:
        super().__init__(named)
        self._sought = f"no Sentinel tells where {named.service} is"
        self._question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", named.service)

    def _read(self, seed: Address, reply: Any) -> Address | str:
        if not reply:
            return "knows no primary of that name; give the one of its `sentinel monitor` line"
        return Address(reply[0].decode(), int(reply[1]))

    def _explain(self, error: Exception) -> str:
        text = super()._explain(error)
        if isinstance(error, AuthenticationError):
            text += "; name the Sentinels' own user: ?sentinel_username=...&sentinel_password=..., empty for none"
        return text


class OfCluster(_Asked):
    """The node of a Cluster that owns a pool's slot. Every node it hears of can be asked later."""

    def __init__(self, named: Named, key: str) -> None:
        super().__init__(named)
        self._slot = key_slot(key.encode())
        self._named = named.seeds
        self._sought = f"no node tells who owns slot {self._slot}"
        self._question = ("CLUSTER", "SLOTS")

    def _read(self, seed: Address, reply: Any) -> Address | str:
        heard, owner = [seed], None
        for first, last, *nodes in reply:
            # A node that doesn't know its own name is where it was asked.
            names = [(node[0] or b"").decode().strip("?") or seed.host for node in nodes]
            there = [Address(name, int(node[1])) for name, node in zip(names, nodes, strict=True)]
            heard += there
            if first <= self._slot <= last and there:
                owner = there[0]
        if owner is None:
            return "nobody owns it; see `redis-cli --cluster check`"
        self._seeds = list(dict.fromkeys((*list(dict.fromkeys(heard))[:_MOST_KNOWN], *self._named)))
        return owner


class Pool(BlockingConnectionPool):
    """redis-py's pool as a maker of connections, with what its URL names."""

    named: Named

    def link_to(self, address: Address) -> AbstractConnection:
        """A connection to `address`, not opened yet."""
        if address is HERE:
            return self.make_connection()  # type: ignore[no-any-return,no-untyped-call]
        options = {**self.connection_kwargs, "host": address.host, "port": address.port}
        return self.connection_class(**options)

    def places(self, key: str) -> Places:
        """Where the pool that `key` belongs to is."""
        if self.named.kind == "sentinel":
            return OfSentinels(self.named)
        if self.named.kind == "cluster":
            return OfCluster(self.named, key)
        return OnePlace()


async def hang_up(link: AbstractConnection) -> None:
    """Close a connection without a goodbye: TLS would wait for the other side, longer than our loop may live."""
    writer = link._writer
    try:
        await link.disconnect(nowait=True)
    finally:
        if writer is not None:
            writer.transport.abort()


def connect(url: str, *, max_connections: int = 8) -> Redis:
    """A client for `url`: bytes in, bytes out, nothing repeated behind the caller's back.

    Callers beyond `max_connections` wait for a free connection instead of failing.

    Raises:
        ConfigError: the URL isn't of a form we know, or its certificates can't be used.
    """
    named = read_url(url)
    options = dict(named.options)
    link_class: type[AbstractConnection] = options.pop("connection_class")
    pool = Pool(
        connection_class=link_class,
        max_connections=max_connections,
        timeout=None,
        **({} if "path" in options else {"socket_keepalive": True, "socket_connect_timeout": 5}) | _plain(options),
    )
    pool.named = named
    if named.kind == "sentinel":
        pool.connection_kwargs["redis_connect_func"] = _greet_primary
    _check_tls(pool)
    return Redis(connection_pool=pool)


async def _greet_primary(link: AbstractConnection) -> None:
    """The usual greeting, and a look whether this is a primary: a Sentinel may know no better, and reads would go on
    for ever at a replica."""
    await link.on_connect()
    await link.send_command("ROLE")
    try:
        role = (await link.read_response())[0]
    except NoPermissionError:
        return
    if role != b"master":
        raise ReadOnlyError("this is a replica by now")


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in options.items() if name != "connection_class"}
    own = {"decode_responses": False, "socket_timeout": None, "retry": Retry(NoBackoff(), 0)}
    return {**kept, **own, "driver_info": None}  # a user with least rights may not tell its library's name


def _check_tls(pool: Pool) -> None:
    """A certificate that can't be used is a mistake to tell at once, not an outage to wait for."""
    try:
        link = pool.link_to(HERE)
        if isinstance(link, SSLConnection):
            link.ssl_context.get()
    except (OSError, SSLError, RedisError, ValueError) as error:
        raise ConfigError(f"Redis URL: its ssl_ options can't be used: {error}") from error


def check_url(url: str) -> None:
    """Whether `connect` can use `url`.

    Raises:
        ConfigError: as `connect`.
    """
    connect(url)


__all__: Sequence[str] = ("OnePlace", "Places", "Pool", "check_url", "connect", "hang_up")
