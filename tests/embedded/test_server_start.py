"""Which server is started, how it's set up, and what is said when there is none."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from pipeline.embedded import EmbeddedError, default_state_dir, ensure, find_server, state_dir_from_url

Connect = Callable[[str], Redis]
Ends = Callable[[int], None]


def test_cold_start_answers_on_both_addresses(state: Path, connect: Connect) -> None:
    """From nothing to a server that answers, by unix socket and by loopback port."""
    with ensure(state) as server:
        connect(server.url).set("a", "1")

        assert connect(server.tcp_url).get("a") == b"1"
        assert connect(server.url).info("server")["process_id"] == server.pid


def test_nothing_is_evicted_and_all_is_written_down(state: Path, connect: Connect) -> None:
    """The queue is never thinned out for want of memory, and it survives in an append-only file."""
    with ensure(state) as server:
        redis = connect(server.url)

        assert redis.config_get("maxmemory-policy", "appendonly", "appendfsync", "save") == {
            "maxmemory-policy": "noeviction",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
        }


def test_only_its_user_reaches_the_data(state: Path) -> None:
    """Folder, socket and files are closed to other accounts."""
    with ensure(state):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [state, *state.rglob("*.aof")]}
        modes["socket"] = stat.S_IMODE((state / "server.sock").stat().st_mode)

    assert {name for name, mode in modes.items() if mode & 0o077} == set()


def test_listens_on_loopback_only(state: Path) -> None:
    """No other machine can connect: every listening TCP socket of the server is bound to 127.0.0.1."""
    with ensure(state) as server:
        mine = {os.readlink(f"/proc/{server.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{server.pid}/fd")}
        rows = [
            row.split()
            for family in ("tcp", "tcp6")
            for row in Path(f"/proc/net/{family}").read_text().split("\n")[1:-1]
        ]

    listening = [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine]
    assert listening == ["0100007F"]


@pytest.mark.parametrize("name", ["with space", "50%20?#", "ünïcode", 'quo"te'])
def test_any_folder_name_works(state: Path, connect: Connect, name: str) -> None:
    """The URL is encoded so that the client finds the socket whatever the folder is called."""
    with ensure(state / name) as server:
        assert connect(server.url).ping()


def test_long_folder_path_works(state: Path, connect: Connect) -> None:
    """A folder too deep for a unix socket is served all the same, shared, and with one address over restarts."""
    deep = state.joinpath(*["a-rather-long-folder-name"] * 6)
    with ensure(deep) as server, ensure(deep) as second:
        connect(server.url).set("kept", "yes")
        assert (second.pid, second.url) == (server.pid, server.url)
        private = Path(server.url.removeprefix("unix://")).parent
        assert stat.S_IMODE(private.stat().st_mode) == 0o700

    with ensure(deep) as again:
        assert again.url == server.url
        assert connect(again.url).get("kept") == b"yes"
    shutil.rmtree(private)


@pytest.mark.skipif(not shutil.which("redis-server"), reason="needs redis-server on PATH")
def test_falls_back_to_a_server_on_path(state: Path, connect: Connect) -> None:
    """Without the packaged binary an installed redis-server serves."""
    binary = find_server(package=None)

    with ensure(state, binary=binary) as server:
        assert connect(server.url).ping()
        assert os.path.samefile(connect(server.url).info("server")["executable"], binary)


def test_no_server_at_all_says_what_to_install(tmp_path: Path) -> None:
    """Who has neither the package nor a server reads in one line how to get one."""
    with pytest.raises(EmbeddedError, match=r"^[^\n]*apt-get install redis-server[^\n]*brew install valkey[^\n]*$"):
        find_server(package="no_such_package", search_path=str(tmp_path))


def test_too_old_a_server_is_refused_by_name(tmp_path: Path) -> None:
    """A server older than 7.0 isn't started, and the message says which one it was."""
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho Redis server v=6.2.14 sha=0\n")
    old.chmod(0o755)

    with pytest.raises(EmbeddedError, match=rf"{old} is 6\.2"):
        find_server(package=None, search_path=str(tmp_path))


def test_a_stale_record_misleads_nobody(state: Path, connect: Connect) -> None:
    """After a power cut the record names a dead socket and somebody else's process: both are left alone."""
    state.mkdir(mode=0o700)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        record = {"folder": str(state), "port": 1, "socket": f"{state}/server.sock", "pid": stranger.pid}
        (state / "server.json").write_text(json.dumps(record))
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(state / "server.sock"))

        with ensure(state) as server:
            assert connect(server.url).ping()
            assert server.pid != stranger.pid

        assert stranger.poll() is None
        stranger.communicate(b"\n")


def test_a_damaged_record_is_replaced(state: Path, connect: Connect) -> None:
    """Half a record is no record."""
    state.mkdir(mode=0o700)
    (state / "server.json").write_text('{"port": "')

    with ensure(state) as server:
        assert connect(server.url).ping()


def test_copied_folder_gets_its_own_server(state: Path, connect: Connect) -> None:
    """A copy of a state folder serves the copy's data, though its record names the original's socket."""
    deep = state.joinpath(*["a-rather-long-folder-name"] * 6)
    with ensure(deep) as server:
        copy = deep.with_name("copied-" + deep.name)
        copy.mkdir(mode=0o700)
        shutil.copy(deep / "server.json", copy)

        with ensure(copy) as other:
            assert other.pid != server.pid
            assert other.url != server.url
            assert connect(server.url).ping()
    for url in (server.url, other.url):
        shutil.rmtree(Path(url.removeprefix("unix://")).parent)


def test_waits_until_all_data_are_loaded(state: Path, connect: Connect, ends: Ends) -> None:
    """The first command after a start with a long log already sees every key."""
    keys = 300_000
    with ensure(state) as server:
        os.kill(server.pid, signal.SIGKILL)
        ends(server.pid)
    [log] = (state / "appendonlydir").glob("*.incr.aof")
    log.write_bytes(b"".join(b"*3\r\n$3\r\nSET\r\n$7\r\n%07d\r\n$1\r\n1\r\n" % key for key in range(keys)))

    with ensure(state) as server:
        assert connect(server.url).dbsize() == keys


def test_a_server_that_hangs_is_reported_in_time(state: Path) -> None:
    """No command waits forever for a server that doesn't answer, and nobody kills it."""
    with ensure(state) as server:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(EmbeddedError, match=r"doesn't answer; see .*server\.log"):
                ensure(state, timeout_s=0.1)
        finally:
            os.kill(server.pid, signal.SIGCONT)


def test_a_server_that_cannot_start_says_why(state: Path, ends: Ends) -> None:
    """Damaged data end the start with the server's own reason, at once and not after the time limit."""
    with ensure(state) as server:
        os.kill(server.pid, signal.SIGKILL)
        ends(server.pid)
    [log] = (state / "appendonlydir").glob("*.incr.aof")
    log.write_bytes(b"nonsense\r\n" * 10)

    with pytest.raises(EmbeddedError, match=r"ends as it starts: .*(Bad file format|appendonly)"):
        ensure(state)


def test_a_folder_open_to_everybody_is_refused(state: Path) -> None:
    """Where everybody may write, anybody could plant a server: the folder is refused and left as it is."""
    state.mkdir()
    state.chmod(0o777)

    with pytest.raises(EmbeddedError, match="written by everybody"):
        ensure(state)

    assert stat.S_IMODE(state.stat().st_mode) == 0o777
    assert list(state.iterdir()) == []


def test_an_unusable_folder_is_one_line(tmp_path: Path) -> None:
    """A folder that can't be made is an error of this module, with the path in it."""
    (tmp_path / "file").write_text("")

    with pytest.raises(EmbeddedError, match=rf"^can't keep the embedded server in {tmp_path}/file/state: "):
        ensure(tmp_path / "file" / "state")


def test_a_thread_with_blocked_signals_may_start_it(state: Path) -> None:
    """The server still hears its keeper when the thread that started it had all signals blocked."""

    def start() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ensure(state).release()  # that the server ends is checked by the fixture

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()

    assert (state / "server.json").exists()


@pytest.mark.parametrize(
    ("url", "env", "folder"),
    [
        ("embedded:", {"XDG_STATE_HOME": "/state"}, Path("/state/tokenweir")),
        ("embedded:", {"XDG_STATE_HOME": "relative"}, Path.home() / ".local/state/tokenweir"),
        ("embedded:", {}, Path.home() / ".local/state/tokenweir"),
        ("embedded:/some/dir", {"XDG_STATE_HOME": "/state"}, Path("/some/dir")),
        ("embedded:~/dir", {}, Path.home() / "dir"),
    ],
)
def test_folder_of_an_url(url: str, env: dict[str, str], folder: Path) -> None:
    """`embedded:` means the user's state folder, `embedded:/some/dir` that folder."""
    assert state_dir_from_url(url, env) == folder
    assert url != "embedded:" or default_state_dir(env) == folder


@pytest.mark.parametrize("url", ["redis://host", "embedded:some/dir", "unix:///a"])
def test_other_urls_are_refused(url: str) -> None:
    """A folder that would depend on the working directory, or another scheme, is a mistake of configuration."""
    with pytest.raises(ValueError, match=url):
        state_dir_from_url(url, {})
