"""What each kind of Redis user of a pool does, and so must be allowed: the one list of it.

`deploy/redis/users.acl` is written from it, `tokenweir check` and a starting worker ask for it. A script runs with its
caller's rights: who runs one needs the right to name its keys (EVALSHA), and each command in it, on its own keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lua import load
from tokenweir.connection import Argument, Connection
from tokenweir.keys import GATE_LANES, GROUPS, INGEST_LANES, Keys

_PROBE = load("rights_probe")
_INNER_LANES: Final = ("premium", "edge", "deferred")
_SCRIPTS: Final = ("EVAL", "EVALSHA")


class Right(NamedTuple):
    """Commands, and the keys of the pool that they may name (`*` = any text); `access` as in Redis's `%RW~`."""

    commands: tuple[str, ...]
    keys: tuple[str, ...]
    access: str = "RW"


class Role(NamedTuple):
    """A kind of user.

    Attributes:
        keyless: commands that name no key. rights: those that do.
        whole_pool: its user may run these commands (but for the destructive ones) on all keys of the pool: checking
            each by itself would cost the server time in every script.
    """

    keyless: tuple[str, ...]
    rights: tuple[Right, ...]
    whole_pool: bool = False


# How it finds a primary under Sentinels, and its way in a Cluster.
_WAY: Final = ("ROLE", "CLUSTER SLOTS", "ASKING")
_ALWAYS: Final = ("SCRIPT LOAD", "SELECT", "PING", "TIME", "ACL WHOAMI", *_WAY)
_SUBMITTER: Final = (
    Right(_SCRIPTS, ("status:*", *INGEST_LANES, *GATE_LANES, "limits", "backlog:*", "responses", "closed")),
    # What it writes there it can't read again: prompts of others.
    Right(("XADD", "XLEN"), INGEST_LANES, "W"),
    Right(("HGET", "HGETALL", "HEXISTS", "HSET", "EXISTS", "EXPIRE", "PERSIST"), ("status:*",)),
    Right(("XREAD", "XADD", "XTRIM", "EXPIRE", "DEL"), ("inbox:*",)),
    Right(("XREAD", "XRANGE"), ("reply:*",), "R"),
    Right(("XREAD", "XRANGE", "XREVRANGE", "XLEN", "XREADGROUP", "XACK", "XAUTOCLAIM"), ("responses",)),
    Right(("XGROUP CREATE", "XGROUP DELCONSUMER", "XINFO CONSUMERS"), ("responses",)),
    Right(("XLEN",), GATE_LANES, "R"),
    Right(("HLEN", "HGET", "HRANDFIELD", "ZRANK", "ZCOUNT"), ("backlog:*",), "R"),
    Right(("HGETALL", "HMGET"), ("limits",), "R"),
    Right(("GET",), ("closed",), "R"),
)
# To cancel a request is to write its result and to take it out of the backlog: who may, may do so to any.
_PRODUCER: Final = (
    *_SUBMITTER,
    Right(_SCRIPTS, ("status:*", "limits", "responses", "deferred", "cancelled", "backlog:*", "tenants")),
    Right(("HMGET",), ("status:*",), "R"),
    Right(("XADD",), ("responses", "deferred"), "W"),
    Right(("XADD", "EXPIRE"), ("cancelled", "reply:*")),
    Right(("HDEL", "ZREM", "ZRANGE"), ("backlog:*",)),
    Right(("HINCRBY", "HDEL"), ("tenants",)),
)
_LIMITER: Final = (
    Right(_SCRIPTS, ("limits", "reservations", "grants", "deferred", "backlog:meta", "limiter:*", "budget:*")),
    Right(("GET", "SET", "EXISTS"), ("limiter:*", "budget:*")),
    Right(("HGETALL", "HGET", "HSET", "HEXISTS", "HINCRBY"), ("limits",)),
    Right(("HSET", "HMGET", "HDEL", "EXPIRE"), ("grants",)),
    Right(("ZADD", "ZREM", "ZRANGEBYSCORE", "EXPIRE"), ("reservations",)),
    Right(("EXISTS",), ("backlog:meta",), "R"),
    Right(("XADD",), ("deferred",), "W"),
)
_WORKER: Final = (
    Right(_SCRIPTS, ("*",)),
    Right(("XADD", "XREADGROUP", "XACK", "XDEL", "XLEN", "XRANGE", "XPENDING", "XCLAIM", "XAUTOCLAIM"), (*GROUPS,)),
    Right(("XGROUP CREATE", "XGROUP DELCONSUMER", "XINFO CONSUMERS", "XINFO GROUPS", "TYPE"), (*GROUPS,)),
    Right(("XADD", "XLEN", "XTRIM", "TYPE"), ("responses", "dead")),
    Right(("XADD", "EXPIRE"), ("reply:*", "inbox:*")),
    Right(("HSET", "HGET", "HMGET", "HDEL", "HEXISTS", "EXPIRE", "PERSIST"), ("status:*",)),
    Right(("HSET", "HGET", "HGETALL", "HEXISTS", "HDEL", "HINCRBY", "TYPE"), ("limits",)),
    Right(("GET", "SET", "EXISTS"), ("budget:*",)),
    Right(("HSET", "HMGET", "HDEL", "EXPIRE"), ("grants",)),
    Right(("ZADD", "ZREM", "ZRANGEBYSCORE", "EXPIRE"), ("reservations",)),
    Right(("HSET", "HDEL", "HGETALL", "PEXPIRE"), ("slots",)),
    Right(("SET", "EXISTS"), ("edge:alive",)),
    Right(("HSET", "HGET", "HMGET", "HDEL", "HLEN", "EXISTS"), ("backlog:meta",)),
    Right(("HSET", "HGET", "HDEL"), ("backlog:bodies",)),
    Right(("HMGET", "HINCRBY", "HDEL"), ("tenants",)),
    Right(("HSET", "HGET", "HMGET", "EXPIRE", "DEL"), ("backlog:timer",)),
    Right(
        ("ZADD", "ZREM", "ZCARD", "ZRANGE", "ZRANGEBYSCORE"),
        tuple(f"backlog:{name}" for name in ("interactive", "standard", "batch", "simple", "due", "deadlines")),
    ),
    Right(("GET",), ("closed",), "R"),
    Right(("XREAD",), ("cancelled",), "R"),
)
_OPERATOR: Final = (
    Right(_SCRIPTS, (*GROUPS, "status:*", "limits", "backlog:*", "responses", "closed", "dead", "budget:*")),
    Right(("XLEN", "XRANGE", "XPENDING", "XCLAIM", "XINFO STREAM", "XINFO GROUPS", "XINFO CONSUMERS"), (*GROUPS,)),
    Right(("XLEN", "XRANGE", "XREVRANGE", "XDEL", "XINFO STREAM"), ("dead",)),
    Right(("XINFO STREAM", "XINFO GROUPS"), ("responses",), "R"),
    # A letter's next life begins in these, a notice to the drain goes to the last.
    Right(("XADD",), (*INGEST_LANES, *GATE_LANES, "deferred"), "W"),
    Right(("HMGET", "HDEL"), ("status:*",)),
    Right(("HGETALL", "HGET", "HSET", "HEXISTS", "HINCRBY"), ("limits",)),
    Right(("GET", "SET"), ("budget:*",)),
    Right(("GET", "SET", "DEL", "EXISTS"), ("closed",)),
    Right(("HGETALL",), ("slots",), "R"),
    Right(("EXISTS",), ("edge:alive", "backlog:meta"), "R"),
    Right(("ZCARD",), ("backlog:*",), "R"),
    Right(("TYPE",), ("*",), "R"),
)
ROLES: Final = {
    "submitter": Role((*_ALWAYS, "WAIT"), _SUBMITTER),
    "producer": Role((*_ALWAYS, "WAIT"), _PRODUCER),
    "limiter": Role((*_ALWAYS, "INFO"), _LIMITER),
    "worker": Role((*_ALWAYS, "INFO", "CLIENT ID", "CLIENT UNBLOCK"), _WORKER, whole_pool=True),
    "operator": Role((*_ALWAYS, "WAIT", "INFO"), (*_PRODUCER, *_OPERATOR)),
}

# These would destroy any key, so they are never allowed on all.
_APART: Final = ("DEL", "SET", "XTRIM")

# Without these a program does all its work, and only shows or tidies up less; or it is asked for what needs them, and
# says so then.
SPARED: Final = (
    *("PING", "SELECT", "ACL WHOAMI", "TYPE", "XINFO GROUPS", "XINFO CONSUMERS", "XGROUP DELCONSUMER"),
    *(*_WAY, "WAIT"),
)

# How a command names its key; all others name it first, and two more words do for them.
_FORMS: Final[dict[str, tuple[str, ...]]] = {
    "XREADGROUP": ("GROUP", "g", "c", "STREAMS", "KEY", ">"),
    "XREAD": ("STREAMS", "KEY", "0"),
    "EVAL": ("return 1", "1", "KEY"),
    "EVALSHA": ("0" * 40, "1", "KEY"),
    "EXISTS": ("KEY",),
    "DEL": ("KEY",),
    "SCRIPT LOAD": ("return 1",),
    "SELECT": ("0",),
    "CLIENT UNBLOCK": ("1",),
    "WAIT": ("0", "0"),
    **dict.fromkeys(("PING", "ACL WHOAMI", "TIME", "INFO", "CLIENT ID", *_WAY), ()),
}
_DEFAULT_FORM: Final = ("KEY", "1", "1")


def needed(role: str, keys: Keys) -> Iterator[tuple[str, list[str]]]:
    """Each thing that a role does, `COMMAND` or `COMMAND key` for people, and the words of such a command."""
    for command in ROLES[role].keyless:
        yield command, [*command.split(), *_FORMS[command]]
    for right in ROLES[role].rights:
        for name in right.keys:
            key = keys.key(name.replace("*", "x"))
            for command in right.commands:
                form = _FORMS.get(command, _DEFAULT_FORM)
                words = [*command.split(), *(key if word == "KEY" else word for word in form)]
                yield f"{command} {keys.key(name)}", words


async def refused(connection: Connection, role: str) -> list[str]:
    """What of a role's doings this connection's user may not do, `COMMAND key` each.

    Raises:
        StoreUnavailable: Redis didn't answer, or this user may run no script at all.
    """
    asked = list(needed(role, connection.keys))
    args: list[Argument] = []
    for _, words in asked:
        args += (len(words), *words)
    places = await connection.run(_PROBE, args)
    return list(dict.fromkeys(asked[place - 1][0] for place in places))


def acl_file(*, prefix: str = "tokenweir", pool: str = "*") -> str:
    """`deploy/redis/users.acl`: a line a user, for `aclfile`. Such a file may hold no remarks."""
    admin = ["user default off", "user admin on >ADMIN_PASSWORD ~* &* +@all"]
    replica = "user replica on >REPLICA_PASSWORD resetchannels -@all +psync +replconf +ping"
    root = f"{prefix}:{{{pool}}}:"
    return "\n".join([*admin, replica, *(_acl_line(name, role, root) for name, role in ROLES.items()), ""])


def _acl_line(name: str, role: Role, root: str) -> str:
    words = [f"user tokenweir-{name} on >{name.upper()}_PASSWORD resetchannels -@all", *_allow(role.keyless)]
    rights: Sequence[Right] = role.rights
    if role.whole_pool:
        commands = dict.fromkeys(command for right in rights for command in right.commands if command not in _APART)
        words += [f"~{root}*", *_allow(tuple(commands))]
        kept = ((right, tuple(command for command in right.commands if command in _APART)) for right in rights)
        rights = [right._replace(commands=commands) for right, commands in kept if commands]
    for right in rights:
        access = "" if right.access == "RW" else f"%{right.access}"
        patterns = [f"{access}~{root}{key}" for key in right.keys]
        words.append(f"({' '.join([*patterns, *_allow(right.commands)])})")
    return " ".join(words)


def _allow(commands: Sequence[str]) -> list[str]:
    return [f"+{command.lower().replace(' ', '|')}" for command in commands]
