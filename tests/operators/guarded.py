"""A Redis started with the files of deploy/redis, a password for each of its users."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.integration.processes import Store
from tests.support import server_binary

FILES = Path(__file__).resolve().parents[2] / "deploy" / "redis"


class GuardedStore(Store):
    """Its `url` is the worker's, its `client` the administrator's."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder, kind)
        users = folder / "users.acl"
        users.write_text(re.sub(r">([A-Z]+)_PASSWORD", lambda found: f">{found[1].lower()}-pw", _read("users.acl")))
        conf = folder / "redis.conf"
        conf.write_text(_read("redis.conf"))
        own = ["--port", str(self.port), "--dir", str(folder), "--logfile", "redis.log", "--aclfile", str(users)]
        self._words = [str(server_binary(kind)), str(conf), *own]
        self.client.close()
        self.client = self.of("admin")
        self.url = self.url_of("worker")

    def url_of(self, user: str) -> str:
        """The URL with which this user comes in."""
        name = user if user in ("admin", "replica") else f"tokenweir-{user}"
        return f"redis://{name}:{user}-pw@127.0.0.1:{self.port}/0"

    def of(self, user: str) -> Redis:
        """A plain client of this user."""
        return Redis.from_url(self.url_of(user), retry=Retry(NoBackoff(), 0), driver_info=None)

    def give_back(self, user: str) -> None:
        """Give a user the rights that it has by the file: `ACL LOAD` would cut off everybody on Redis 7.0."""
        lines = (self._folder / "users.acl").read_text().splitlines()
        (rules,) = [line.split()[1:] for line in lines if line.startswith(f"user tokenweir-{user} ")]
        self.client.execute_command("ACL", "SETUSER", rules[0], "reset", *rules[1:])  # type: ignore[no-untyped-call]

    def refusals(self) -> list[dict[str, Any]]:
        """What was refused to anybody since the last look."""
        found: list[dict[str, Any]] = self.client.acl_log()
        self.client.acl_log_reset()
        return found


def _read(name: str) -> str:
    return (FILES / name).read_text()
