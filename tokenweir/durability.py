"""How safe a request is before `submit` returns: what Redis is asked to wait for behind the write.

`aof` waits for nothing: Redis writes its append-only file once a second, so a crash of its machine may take the last
second with it, and a fail-over what its replica hadn't got. `replica` waits for one replica to have it, `fsync` for
the primary's disk. The wait goes over the connection that wrote, since Redis means what that one wrote last; and a
repeat of a known request writes as well (lua/request_submit.lua), or it would have nothing to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from tokenweir.errors import ConfigError, StoreUnavailable

# The command line asks for the names alone, and mustn't wait for the Redis client to load.
if TYPE_CHECKING:
    from tokenweir.connection import Argument, Connection

Durability = Literal["aof", "replica", "fsync"]

# A healthy replica answers within a millisecond; a file that is synced every second within two.
_REPLICA_MS, _FSYNC_MS = 1000, 3000
_WAITS: Final[dict[str, tuple[Argument, ...]]] = {
    "replica": ("WAIT", 1, _REPLICA_MS),
    "fsync": ("WAITAOF", 1, 0, _FSYNC_MS),
}
_REPEAT: Final = "repeat the call with the same id: it is queued once"


class Wait:
    """What to send behind a write, and what its answer means.

    Raises:
        ConfigError: there is no such durability.
    """

    def __init__(self, durability: str) -> None:
        if durability not in get_args(Durability):
            raise ConfigError(f"durability {durability!r} is none of {', '.join(get_args(Durability))}")
        self.words = _WAITS.get(durability, ())
        self._tried = durability != "fsync"

    async def prepare(self, connection: Connection) -> None:
        """Try once whether this Redis can do that at all, before anything is queued.

        Raises:
            ConfigError: it can't.
            StoreUnavailable: Redis didn't answer.
        """
        if self._tried:
            return
        try:
            await connection.command("WAITAOF", 1, 0, 1)
        except StoreUnavailable as error:
            if "unknown command" in str(error):
                text = "needs WAITAOF, which Redis has from 7.2 on, and Valkey; here take 'replica' or 'aof'"
                raise ConfigError(f"durability 'fsync' {text}") from error
            if "appendonly" in str(error):
                text = "needs the append-only file, which is off: CONFIG SET appendonly yes, and the same in redis.conf"
                raise ConfigError(f"durability 'fsync' {text}") from error
            raise
        self._tried = True

    def check(self, reply: Any) -> None:
        """Whether what was waited for has come.

        Raises:
            StoreUnavailable: it hasn't, in time.
        """
        if self.words[0] == "WAIT" and reply < 1:
            raise StoreUnavailable(
                f"queued, but no replica had it within {_REPLICA_MS / 1000:g} s; {_REPEAT}, and see INFO replication"
            )
        if self.words[0] == "WAITAOF" and reply[0] < 1:
            raise StoreUnavailable(
                f"queued, but not on the disk within {_FSYNC_MS / 1000:g} s; {_REPEAT}, and see INFO persistence"
            )
