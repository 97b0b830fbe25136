"""One server a folder, for as long as anybody uses it, and its data for longer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from redis import Redis

from pipeline.embedded import ensure

if TYPE_CHECKING:
    from tests.embedded.conftest import User

Start = Callable[..., "User"]
Connect = Callable[[str], Redis]
Ends = Callable[[int], None]
Keeper = Callable[[int], int]


def test_two_commands_share_one_server(user: Start, connect: Connect) -> None:
    """A second command joins the server of the first and sees its data."""
    first = user()
    connect(first.url).set("said", "hello")

    second = user()

    assert second.server == first.server
    assert connect(second.url).get("said") == b"hello"


def test_server_ends_with_its_last_user(state: Path, user: Start, connect: Connect, ends: Ends, keeper: Keeper) -> None:
    """After kill -9 of all users nothing keeps running, and the next start has the data."""
    users = [user(), user()]
    connect(users[0].url).set("kept", "yes")
    keeper_pid = keeper(users[0].server)

    for each in users:
        each.kill()

    ends(users[0].server)
    ends(keeper_pid)
    with ensure(state) as server:
        assert connect(server.url).get("kept") == b"yes"


def test_server_outlives_one_of_two_users(user: Start, connect: Connect) -> None:
    """Kill -9 of one user doesn't disturb the other."""
    leaves, stays = user(), user()

    leaves.kill()

    assert connect(stays.url).ping()
    assert user().server == stays.server


def test_release_ends_the_last_share(state: Path, ends: Ends) -> None:
    """A user who lives on without the server gives it up by `release`, and may do so twice."""
    server = ensure(state)

    server.release()
    server.release()

    ends(server.pid)


def test_leaving_and_coming_at_once(state: Path, connect: Connect) -> None:
    """Who comes as the last user leaves gets a server that works, the old or a new one, with all data."""
    for count in range(1, 11):
        with ensure(state) as server:
            assert connect(server.url).incr("visits") == count


def test_simultaneous_starts_give_one_server(user: Start) -> None:
    """Five commands that start at the same moment end up at one server."""
    users = [user(wait=False) for _ in range(5)]

    for each in users:
        each.go()

    assert len({each.wait().server for each in users}) == 1


def test_forked_children_are_users_too(user: Start, connect: Connect, ends: Ends) -> None:
    """A forked worker keeps the server after kill -9 of its parent; the server ends after the worker."""
    parent = user(fork=True)

    parent.kill()
    assert connect(parent.url).ping()

    parent.kill_child()
    ends(parent.server)


def test_release_in_a_child_leaves_the_parent_its_share(state: Path, connect: Connect) -> None:
    """What a forked child releases is its own copy."""
    with ensure(state) as server:
        child = os.fork()
        if child == 0:
            server.release()
            os._exit(0)
        os.waitpid(child, 0)

        with ensure(state) as again:
            assert again.pid == server.pid
        assert connect(server.url).ping()


def test_killed_server_is_started_again(state: Path, user: Start, connect: Connect, ends: Ends) -> None:
    """After kill -9 of the server, `ensure` starts it at the same places, and no answered write is lost."""
    lives = user()
    connect(lives.url).set("kept", "yes")

    os.kill(lives.server, signal.SIGKILL)
    ends(lives.server)

    with ensure(state) as server:
        assert server.pid != lives.server
        assert server.url == lives.url
        assert connect(server.url).get("kept") == b"yes"


def test_killed_keeper_is_replaced(state: Path, user: Start, connect: Connect, ends: Ends, keeper: Keeper) -> None:
    """Kill -9 of the keeper disturbs nobody; the next user brings a new one, so the server still has an end."""
    first = user()
    keeper_pid = keeper(first.server)

    os.kill(keeper_pid, signal.SIGKILL)
    ends(keeper_pid)

    with ensure(state) as server:
        assert server.pid == first.server
        assert connect(server.url).ping()
        first.kill()
        assert connect(server.url).ping()
    ends(server.pid)


def test_ctrl_c_spares_the_server(state: Path, keeper: Keeper) -> None:
    """Ctrl-C and a closed terminal reach the session of the command; the server and its keeper aren't in it."""
    with ensure(state) as server:
        sessions = {os.getsid(server.pid), os.getsid(keeper(server.pid))}

    assert len(sessions) == 1
    assert os.getsid(0) not in sessions
