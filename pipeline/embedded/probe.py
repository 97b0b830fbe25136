"""Asks the server behind a unix socket who it is and whether it's ready.

The wire is spoken directly: a client library would hide the difference between "loading" and "gone".
"""

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

# A busy server answers late, not never; a refused connection fails at once.
_ANSWER_WAIT_S = 1.0
_QUESTIONS = b"PING\r\nINFO server\r\nCONFIG GET dir\r\nQUIT\r\n"
_PID = re.compile(rb"^process_id:(\d+)\r$", re.MULTILINE)
_PORT = re.compile(rb"^tcp_port:(\d+)\r$", re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    """What a live server said.

    Attributes:
        ready: it answers commands; false while it loads its data or refuses to work.
        said: its answer to PING, for messages.
    """

    pid: int
    port: int
    ready: bool
    said: str


def ask(path: Path, folder: Path) -> Answer | None:
    """The answer of the server that listens at `path` and keeps its data in `folder`; None if there is none.

    The folder is compared because a socket can have come to be another server's; a lock can't tell that.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_WAIT_S)
            connection.connect(os.fspath(path))
            connection.sendall(_QUESTIONS)
            reply = b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError:
        return None
    pid, port = _PID.search(reply), _PORT.search(reply)
    if pid is None or port is None or b"\r\n" + os.fsencode(folder) + b"\r\n" not in reply:
        return None
    said = reply.split(b"\r\n", 1)[0]
    return Answer(pid=int(pid[1]), port=int(port[1]), ready=said == b"+PONG", said=said.decode(errors="replace"))
