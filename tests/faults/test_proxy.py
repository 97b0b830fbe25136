"""The network of the tests does to real connections what it says, so that what a test proves is proven."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from tests.faults.proxy import Proxy
from tests.integration.processes import wait_until
from tests.support import Server, running_server, server_kinds

_PING = b"*1\r\n$4\r\nPING\r\n"
_PONG = b"+PONG\r\n"
# Within which nothing came that would have come in a millisecond.
_SILENCE_S = 0.15


@pytest.fixture
def proxy(redis_server: Server) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as opened:
        yield opened


@pytest.fixture
def wire(proxy: Proxy) -> Iterator[socket.socket]:
    """A connection through the proxy that has been used."""
    with _dial(proxy) as opened:
        opened.sendall(_PING)
        assert opened.recv(64) == _PONG
        yield opened


def _dial(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def _received(wire: socket.socket) -> bytes | None:
    """What comes next: b'' for the end of the connection, None for nothing within a while."""
    wire.settimeout(_SILENCE_S)
    try:
        return wire.recv(4096)
    except ConnectionError:
        return b""
    except TimeoutError:
        return None
    finally:
        wire.settimeout(5)


def test_bytes_pass_and_connections_are_counted(proxy: Proxy, wire: socket.socket) -> None:
    """Untouched, it is a wire: large replies whole, an end passed on, connections counted."""
    wire.sendall(b"*2\r\n$4\r\nECHO\r\n$1000000\r\n" + b"x" * 1_000_000 + b"\r\n")
    got = b""
    while len(got) < 1_000_012:
        got += wire.recv(1_000_000)
    assert got == b"$1000000\r\n" + b"x" * 1_000_000 + b"\r\n"
    assert (proxy.opened, proxy.live, proxy.broken) == (1, 1, 0)

    wire.sendall(b"*1\r\n$4\r\nQUIT\r\n")
    assert wire.recv(64) == b"+OK\r\n"
    assert wire.recv(64) == b""
    wire.close()
    wait_until(lambda: proxy.live == 0)
    assert proxy.broken == 0


def test_a_cut_breaks_what_is_open_and_what_comes(proxy: Proxy, wire: socket.socket) -> None:
    """Cut off, every connection ends and each new one at once; mended, new ones work."""
    proxy.cut()
    assert _received(wire) == b""
    with _dial(proxy) as other:
        assert _received(other) == b""

    proxy.mend()
    with _dial(proxy) as other:
        other.sendall(_PING)
        assert other.recv(64) == _PONG
    assert (proxy.opened, proxy.broken) == (3, 2)


def test_a_lost_reply_is_lost_after_so_many_bytes(proxy: Proxy, wire: socket.socket) -> None:
    """The server has done what I asked for, and its answer breaks off in the middle."""
    proxy.lose_replies(after_bytes=3)
    wire.sendall(b"*3\r\n$3\r\nSET\r\n$5\r\nproxy\r\n$1\r\n7\r\n")

    assert _received(wire) == b"+OK"
    assert _received(wire) == b""
    with _dial(proxy) as other:
        other.sendall(b"*2\r\n$6\r\nGETDEL\r\n$5\r\nproxy\r\n")
        assert other.recv(64) == b"$1\r\n7\r\n"
    assert proxy.broken == 1


def test_a_swallowed_direction_is_silent_and_stays_open(proxy: Proxy, wire: socket.socket) -> None:
    """Nothing arrives and nothing ends; mended, the connection with the gap breaks instead of going on."""
    proxy.swallow("replies")
    wire.sendall(_PING)
    assert _received(wire) is None
    assert (proxy.live, proxy.swallowed_bytes) == (1, len(_PONG))

    proxy.mend()
    assert _received(wire) == b""


def test_an_end_is_not_told_through_a_swallowed_direction(proxy: Proxy) -> None:
    """Half open: the server dies and its client learns nothing, until the network is mended."""
    with running_server(server_kinds()[0]) as server:
        proxy.retarget(server.port)
        wire = _dial(proxy)
        wire.sendall(_PING)
        assert wire.recv(64) == _PONG
        proxy.swallow("replies")
    with wire:
        assert _received(wire) is None
        proxy.mend()
        assert _received(wire) == b""


def test_a_stranded_connection_is_dead_and_new_ones_live(proxy: Proxy, wire: socket.socket) -> None:
    """The way of one connection is lost, as behind a firewall that forgot it: no word, no end; others work."""
    proxy.strand()
    wire.sendall(_PING)
    assert _received(wire) is None
    with _dial(proxy) as other:
        other.sendall(_PING)
        assert other.recv(64) == _PONG
    assert _received(wire) is None


def test_what_is_held_comes_whole_and_in_order(proxy: Proxy, wire: socket.socket) -> None:
    """Held back, a request waits in the network, and is done even if its sender has left by then."""
    proxy.hold("requests")
    wire.sendall(b"*2\r\n$4\r\nINCR\r\n$4\r\nheld\r\n" * 2)
    assert _received(wire) is None
    wire.close()

    proxy.release()
    with _dial(proxy) as other:
        wait_until(lambda: proxy.live == 1)
        other.sendall(b"*2\r\n$6\r\nGETDEL\r\n$4\r\nheld\r\n")
        assert other.recv(64) == b"$1\r\n2\r\n"


def test_a_slow_way_takes_its_time(proxy: Proxy, wire: socket.socket) -> None:
    """Each few bytes come after a pause of their own."""
    proxy.slow(0.05, "replies", chunk_bytes=2)
    began = time.monotonic()
    wire.sendall(_PING)
    got = b""
    while got != _PONG:
        got += wire.recv(64)
    assert 0.2 <= time.monotonic() - began < 2


def test_new_connections_lead_to_the_new_target(proxy: Proxy, wire: socket.socket) -> None:
    """Like a changed DNS entry: open connections stay, new ones go elsewhere, or nowhere when nobody is there."""
    with running_server(server_kinds()[0]) as server:
        proxy.retarget(server.port)
        with _dial(proxy) as other:
            other.sendall(b"*3\r\n$3\r\nSET\r\n$5\r\nwhere\r\n$5\r\nthere\r\n")
            assert other.recv(64) == b"+OK\r\n"
        wire.sendall(b"*2\r\n$6\r\nEXISTS\r\n$5\r\nwhere\r\n")
        assert wire.recv(64) == b":0\r\n"
    with _dial(proxy) as other:
        assert _received(other) == b""
