"""Starts the server of a state folder, or joins the one that runs, and counts its users by a lock."""

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from pipeline.embedded.binary import find_server
from pipeline.embedded.errors import EmbeddedError
from pipeline.embedded.folder import Folder, default_state_dir
from pipeline.embedded.probe import Answer, ask

_KEEPER = Path(__file__).with_name("keeper.py")
# A start takes some 60 ms, so this adds little to it and costs next to nothing.
_LOOK_AGAIN_S = 0.003
# A free port can be taken by somebody else before the server binds it; anything else fails every time.
_MOST_STARTS = 3


class EmbeddedServer:
    """A live server and this process's share in it.

    The share lasts until `release`, or until this process and the children it forked have ended, by whatever
    signal. A child that was forked can't release the share of its parent.

    Attributes:
        url: the unix socket, as redis-py reads it; the same after a restart of the server.
        tcp_url: the loopback port, for tools that can't use a unix socket.
        pid: the server's process. socket_path: its socket, in a short folder of its own where the data's is too long.
    """

    def __init__(self, *, socket_path: Path, answer: Answer, share: int) -> None:
        self.socket_path = socket_path
        self.url = f"unix://{quote(os.fspath(socket_path))}"
        self.tcp_url = f"redis://127.0.0.1:{answer.port}/0"
        self.pid = answer.pid
        self._share: int | None = share

    def release(self) -> None:
        """Give up the share; the server ends, in its own time, if it was the last one. Harmless twice."""
        if self._share is not None:
            # Closed and not unlocked: unlocking would take the lock from forked children, too.
            os.close(self._share)
            self._share = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def ensure(state_dir: Path | None = None, *, binary: Path | None = None, timeout_s: float = 30.0) -> EmbeddedServer:
    """A share in the live, ready server of `state_dir`, started if it isn't running. Blocks; safe in any thread.

    Args:
        state_dir: where the data are kept; None for the default folder of a user without XDG_STATE_HOME.
        binary: the server to start instead of the one `find_server` finds.
        timeout_s: how long to wait for a former server to end and for the new one to load its data.

    Raises:
        EmbeddedError: no server to start, it failed, it wasn't ready in time, or the folder can't be used.
    """
    path = state_dir or default_state_dir({})
    deadline_s = time.monotonic() + timeout_s
    try:
        folder = Folder(path)
        with ExitStack() as undo:
            share = _join(folder, deadline_s)
            undo.callback(os.close, share)
            where, answer = _serve(folder, binary, deadline_s)
            undo.pop_all()
    except OSError as error:
        raise EmbeddedError(f"can't keep the embedded server in {path}: {error}") from error
    return EmbeddedServer(socket_path=where, answer=answer, share=share)


def _join(folder: Folder, deadline_s: float) -> int:
    """Become a user. While the keeper ends a server for want of users, this waits, so nobody gets a dying one."""
    while (share := folder.lock("users", shared=True)) is None:
        if time.monotonic() > deadline_s:
            raise EmbeddedError(f"the former server of {folder.path} doesn't come to its end; see {folder.log}")
        time.sleep(_LOOK_AGAIN_S)
    return share


def _serve(folder: Folder, binary: Path | None, deadline_s: float) -> tuple[Path, Answer]:
    """Wait for a ready, kept server; whoever gets the keeper's lock while there is none, provides one."""
    starts = 0
    while True:
        keeper = folder.lock("keeper")
        if keeper is not None:
            try:
                starts += _provide(folder, binary, keeper, last=starts >= _MOST_STARTS)
            finally:
                os.close(keeper)
        where = folder.socket()
        answer = ask(where, folder.path) if where else None
        if where and answer and answer.ready:
            if starts:
                folder.note(port=answer.port, socket=where, pid=answer.pid)
            return where, answer
        if time.monotonic() > deadline_s:
            state = f"isn't ready ({answer.said})" if answer else "doesn't answer"
            raise EmbeddedError(f"the server of {folder.path} {state}; see {folder.log}")
        time.sleep(_LOOK_AGAIN_S)


def _provide(folder: Folder, binary: Path | None, keeper: int, *, last: bool) -> int:
    """Give the folder a keeper, and a server if none lives; returns the number of servers started."""
    server = folder.lock("server")
    if server is None:
        # Its keeper was killed. If it doesn't answer, it's loading or ending: the caller looks again.
        where = folder.socket()
        orphan = ask(where, folder.path) if where else None
        if orphan:
            _start_keeper(folder, keeper, ["adopt", str(orphan.pid)], ())
        return 0
    try:
        if last:
            raise EmbeddedError(f"the server of {folder.path} ends as it starts: {_last_line(folder.log)}")
        port, where = _free_port(folder.record().port), folder.new_socket()
        command = _command(binary or find_server(), folder, port, where)
        folder.note(port=port, socket=where)
        _start_keeper(folder, keeper, ["start", str(server), *command], (server,))
    finally:
        os.close(server)
    return 1


def _start_keeper(folder: Folder, keeper: int, task: list[str], passed: tuple[int, ...]) -> None:
    """Hand the keeper's lock, and those in `passed`, to a new keeper in a session of its own.

    The session keeps Ctrl-C and a closed terminal from the server.
    """
    command = [sys.executable, "-I", "-S", os.fspath(_KEEPER), os.fspath(folder.path), str(keeper), *task]
    with open(os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as log:
        ended = subprocess.run(  # noqa: S603 - our own script, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(keeper, *passed),
            start_new_session=True,
            check=False,
        )
    # Killed by a signal is somebody's doing, and no reason to give up: the caller looks again.
    if ended.returncode > 0:
        raise EmbeddedError(f"the keeper of {folder.path} failed to start: {_last_line(folder.log)}")


def _command(binary: Path, folder: Folder, port: int, where: Path) -> list[str]:
    settings = {
        "dir": folder.path,
        "logfile": folder.log,
        "daemonize": "no",
        "bind": "127.0.0.1",
        "port": port,
        "protected-mode": "yes",
        "unixsocket": where,
        "unixsocketperm": "600",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    return [os.fspath(binary), *(part for name, value in settings.items() for part in (f"--{name}", str(value)))]


def _free_port(preferred: int) -> int:
    """A loopback port nobody listens on: the former one if possible, since tools may have noted its URL."""
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(("127.0.0.1", preferred))
        except OSError:
            attempt.bind(("127.0.0.1", 0))
        port: int = attempt.getsockname()[1]
    return port


def _last_line(log: Path) -> str:
    """The reason a failed server gave: it stands at the end of the log."""
    lines: list[str] = []
    with suppress(OSError):
        lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
