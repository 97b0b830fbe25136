"""Redis wherever it is: one server, a primary with its replica under three Sentinels, a Cluster of three primaries.

All are real servers of the kind that the suite runs on, each in a folder of its own.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel

from tests.integration.processes import Store, wait_until
from tests.support import free_port, server_binary

KIND = os.environ.get("TOKENWEIR_TEST_SERVER", "valkey")
NAME = "weir"
# Short, so that a test doesn't wait; long enough that two busy cores don't look like a dead server.
DOWN_AFTER_S = 1.0
_SLOTS = 16384


class Server(Store):
    """One server among others; it can be held up, and go on."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder, KIND, ["--repl-diskless-sync-delay", "0", *options])
        self.address = f"127.0.0.1:{self.port}"

    def hold(self) -> None:
        """It answers nobody, and hears nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """The end of `hold`."""
        os.kill(self.pid, signal.SIGCONT)

    def command(self, *words: Any) -> Any:
        """The reply to any command, as the server gives it."""
        return ask(self.port, *words)

    @property
    def primary(self) -> bool:
        """Whether it takes writes."""
        try:
            return self.command("ROLE")[0] == "master"  # type: ignore[no-any-return]
        except RedisError:
            return False

    def follows(self, other: Server) -> bool:
        """Whether it is a replica of `other`."""
        role = self.command("ROLE")
        return role[0] == "slave" and role[2] == other.port  # type: ignore[no-any-return]


class Watched:
    """A primary with its replicas, under three Sentinels."""

    def __init__(self, folder: Path, options: Sequence[str] = (), *, replicas: int = 1) -> None:
        self._folder = folder
        self.servers = [Server(folder / "a", options)]
        behind = [*options, "--replicaof", "127.0.0.1", str(self.servers[0].port)]
        self.servers += [Server(folder / name, behind) for name in "bc"[:replicas]]
        self._sentinels: list[subprocess.Popen[bytes]] = []
        self.ports = [free_port() for _ in range(3)]
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.url = f"redis+sentinel://{hosts}/{NAME}"
        self.sentinels = Sentinel([("127.0.0.1", port) for port in self.ports])  # type: ignore[no-untyped-call]
        self.client: Redis = self.sentinels.master_for(NAME, retry=Retry(NoBackoff(), 0))  # type: ignore[no-untyped-call]

    @property
    def primary(self) -> Server:
        """The server that takes writes."""
        return next(server for server in self.servers if server.primary)

    @property
    def replica(self) -> Server:
        """The other one, or the first of the others."""
        return next(server for server in self.servers if not server.primary)

    def start(self) -> None:
        """Start all of it, and wait until the Sentinels could fail over."""
        for server in self.servers:
            server.start()
        wait_until(self.linked, 20, why="the replica doesn't follow")
        ids = [secrets.token_hex(20) for _ in self.ports]
        for own, port in zip(ids, self.ports, strict=True):
            self._sentinels.append(self._sentinel(own, port, ids))
        wait_until(self._watched, 20, why="the Sentinels don't agree")

    def cut_off(self) -> Server:
        """Hold the replica up, and have what it would be sent from now on lost to it; returns it."""
        primary, replica = self.primary, self.replica
        replica.hold()
        primary.command("CLIENT", "KILL", "TYPE", "replica")
        return replica

    def linked(self) -> bool:
        """Whether all replicas follow the primary."""
        states = [server.client.info("replication").get("master_link_status") for server in self.servers[1:]]
        return set(states) == {"up"}

    def stop(self) -> None:
        """End all of it."""
        for process in self._sentinels:
            process.terminate()
            process.wait(10)
        for client in (*self.sentinels.sentinels, self.client):
            client.close()
        for server in self.servers:
            server.stop()
            server.client.close()

    def _sentinel(self, own: str, port: int, ids: Sequence[str]) -> subprocess.Popen[bytes]:
        """A Sentinel that knows the others already: finding them out takes seconds."""
        first, *others = self.servers
        lines = [f"port {port}", "bind 127.0.0.1", f"sentinel myid {own}"]
        lines.append(f"sentinel monitor {NAME} 127.0.0.1 {first.port} 2")
        lines += [f"sentinel known-replica {NAME} 127.0.0.1 {server.port}" for server in others]
        lines += [f"sentinel down-after-milliseconds {NAME} {round(DOWN_AFTER_S * 1000)}"]
        lines += [f"sentinel failover-timeout {NAME} 3000", f'logfile "{self._folder}/sentinel{port}.log"']
        for other, at in zip(ids, self.ports, strict=True):
            if other != own:
                lines.append(f"sentinel known-sentinel {NAME} 127.0.0.1 {at} {other}")
        file = self._folder / f"sentinel{port}.conf"
        file.write_text("\n".join(lines) + "\n")
        words = [str(server_binary(KIND)), str(file), "--sentinel"]
        return subprocess.Popen(words, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _watched(self) -> bool:
        try:
            seen = [_table(ask(port, "SENTINEL", "MASTER", NAME)) for port in self.ports]
            replicas = [_table(each) for port in self.ports for each in ask(port, "SENTINEL", "REPLICAS", NAME)]
        except RedisError:
            return False
        flags = [each["flags"] for each in (*seen, *replicas)]
        offsets = [each["slave-repl-offset"] for each in replicas]
        known = 3 * (len(self.servers) - 1)
        return set(flags) <= {"master", "slave"} and len(offsets) == known and "0" not in offsets


class Cluster:
    """Three primaries that share the slots, each with `replicas` replicas."""

    def __init__(self, folder: Path, *, replicas: int = 1) -> None:
        # Without the first, one dead primary would stop the pools of all others.
        options = ["--cluster-require-full-coverage", "no", "--cluster-enabled", "yes"]
        options += ["--cluster-node-timeout", str(round(DOWN_AFTER_S * 1000))]
        names = [f"{letter}{number}" for number in range(1 + replicas) for letter in "abc"]
        self.servers = [Server(folder / name, [*options, "--cluster-port", str(free_port())]) for name in names]
        self.url = "redis+cluster://" + ",".join(server.address for server in self.servers[:3])
        self.client: Any = None

    def start(self) -> None:
        """Start all of it, and wait until all agree on who has which slots."""
        for server in self.servers:
            server.start()
        first = self.servers[0]
        for number, server in enumerate(self.servers, 1):
            server.command("CLUSTER", "SET-CONFIG-EPOCH", number)
            if server is not first:
                bus = first.command("CONFIG", "GET", "cluster-port")[1]
                server.command("CLUSTER", "MEET", "127.0.0.1", first.port, bus)
        for number, server in enumerate(self.servers[:3]):
            server.command("CLUSTER", "ADDSLOTSRANGE", *self._share(number))
        wait_until(lambda: all(self._knows_all(server) for server in self.servers), 20, why="they don't meet")
        for number, server in enumerate(self.servers[3:]):
            server.command("CLUSTER", "REPLICATE", self.id(self.servers[number % 3]))
        wait_until(self.whole, 20, why="the Cluster doesn't come up")
        self.client = RedisCluster(
            startup_nodes=[ClusterNode("127.0.0.1", server.port) for server in self.servers],  # type: ignore[no-untyped-call]
            retry=Retry(NoBackoff(), 3),
        )

    def stop(self) -> None:
        """End all of it."""
        if self.client:
            self.client.close()
        for server in self.servers:
            server.stop()
            server.client.close()

    def whole(self) -> bool:
        """Whether all live servers see every slot served, and replicas follow."""
        for server in self.servers:
            try:
                state = server.command("CLUSTER", "INFO")
                role = server.command("ROLE")
            except RedisError:
                continue
            if "cluster_state:ok" not in state or (role[0] == "slave" and role[3] != "connected"):
                return False
        return True

    def id(self, server: Server) -> str:
        """The server's name among the nodes."""
        return server.command("CLUSTER", "MYID")  # type: ignore[no-any-return]

    def owner(self, key: str) -> Server:
        """The primary that serves `key`."""
        slot = key_slot(key.encode())
        for server in self.servers:
            if server.primary and any(first <= slot <= last for first, last in self._slots(server)):
                return server
        raise AssertionError(f"nobody serves slot {slot}")

    def pool_on(self, number: int, name: str) -> str:
        """A pool's name that begins with `name` and lies in the share of that primary."""
        first, last = self._share(number)
        tries = (f"{name}{count}" for count in range(10_000))
        return next(pool for pool in tries if first <= key_slot(pool.encode()) <= last)

    def begin_move(self, slot: int, source: Server, target: Server) -> None:
        """From now on the slot's keys may be on both."""
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id(target))

    def move_keys(self, slot: int, source: Server, target: Server, *, most: int = 1_000_000) -> None:
        """Move so many keys of it, or all."""
        while most > 0 and (keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, min(most, 1000))):
            for key in keys:
                source.command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
            most -= len(keys)

    def end_move(self, slot: int, target: Server) -> None:
        """The slot is the target's, and everybody knows."""
        for server in [target, *(server for server in self.servers if server.primary and server is not target)]:
            server.command("CLUSTER", "SETSLOT", slot, "NODE", self.id(target))

    def _knows_all(self, server: Server) -> bool:
        nodes = server.command("CLUSTER", "NODES").splitlines()
        return len(nodes) == len(self.servers) and all("handshake" not in node for node in nodes)

    def _slots(self, server: Server) -> list[tuple[int, int]]:
        own = self.id(server)
        return [(first, last) for first, last, node, *_ in server.command("CLUSTER", "SLOTS") if node[2] == own]

    @staticmethod
    def _share(number: int) -> tuple[int, int]:
        return number * _SLOTS // 3, (number + 1) * _SLOTS // 3 - 1


def ask(port: int, *words: Any) -> Any:
    """The reply to any command, as the server gives it."""
    with Redis(port=port, protocol=2, retry=Retry(NoBackoff(), 0), decode_responses=True) as client:
        client.response_callbacks.clear()
        return client.execute_command(*words)


def _table(flat: Sequence[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


@contextmanager
def running(place: Any) -> Iterator[Any]:
    """`place`, started; ended afterwards."""
    with ExitStack() as stack:
        stack.callback(place.stop)
        place.start()
        yield place
