"""One address whose server changes, by DNS or by a proxy: who finds a replica behind it comes in anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.kit import Server, running
from tests.faults.proxy import Proxy
from tests.support import eventually
from tokenweir import StoreUnavailable
from tokenweir.connection import Connection, connect
from tokenweir.keys import Keys

pytestmark = pytest.mark.anyio


async def test_c57_connections_to_a_demoted_server_are_given_up(tmp_path: Path) -> None:
    """The old server lives on as a replica and keeps our connections open: they are left, and the new one serves."""
    with running(Server(tmp_path / "a")) as old, running(Server(tmp_path / "b")) as new, Proxy(old.port) as proxy:
        connection = Connection(connect(proxy.url), Keys())
        write = ("HSET", connection.keys.key("slots"), "a", "b")
        await connection.command(*write)

        old.command("REPLICAOF", "127.0.0.1", new.port)
        await eventually(lambda: not old.primary)
        with pytest.raises(StoreUnavailable, match="ReadOnly"):
            await connection.command(*write)
        proxy.retarget(new.port)

        assert await connection.command(*write) == 1
        assert new.client.hlen(connection.keys.key("slots")) == 1
        await connection.aclose()
