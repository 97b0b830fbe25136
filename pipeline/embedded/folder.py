"""The state folder: its locks, its record, and where the socket lies.

What is true is said by the locks, which the kernel drops with their holders, and by the server itself; the record
is only a hint that survives restarts (the same port and socket again) and something for people to read.
"""

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from pipeline.embedded.errors import EmbeddedError

_SCHEME = "embedded:"
# 107 bytes on Linux, 103 on macOS.
_LONGEST_SOCKET_PATH = 103


class Record(msgspec.Struct, frozen=True):
    """What `server.json` says about the server that was started last; pid 0 until it was ready."""

    folder: str = ""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    socket: str = ""
    pid: int = 0
    started_s: int = 0


def default_state_dir(env: Mapping[str, str]) -> Path:
    """The folder that `embedded:` means to a user with these environment variables."""
    home = Path(env.get("XDG_STATE_HOME", ""))
    # The XDG specification wants relative paths ignored; an empty one is relative, too.
    return (home if home.is_absolute() else Path.home() / ".local" / "state") / "tokenweir"


def state_dir_from_url(url: str, env: Mapping[str, str]) -> Path:
    """The folder named by `embedded:` or `embedded:/some/dir`.

    Raises:
        ValueError: another scheme, or a path that depends on the working directory.
    """
    scheme, _, path = url.partition(":")
    if scheme + ":" != _SCHEME:
        raise ValueError(f"not an {_SCHEME} URL: {url}")
    if not path:
        return default_state_dir(env)
    folder = Path(path).expanduser()
    if not folder.is_absolute():
        raise ValueError(f"{url} names a relative folder: write {_SCHEME}/absolute/path")
    return folder


class Folder:
    """An existing state folder, safe to keep data in."""

    def __init__(self, path: Path) -> None:
        """Create the folder, for its user alone, unless it's there.

        Raises:
            EmbeddedError: everybody may write there, so that anybody could plant a socket or data.
        """
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path.resolve()
        self.log = self.path / "server.log"
        self._record = self.path / "server.json"
        if self.path.stat().st_mode & stat.S_IWOTH:
            raise EmbeddedError(f"{self.path} may be written by everybody: name a folder of your own")

    def lock(self, name: str, *, shared: bool = False) -> int | None:
        """A descriptor that holds `<name>.lock` until it and all its copies are closed; None while another holds it."""
        descriptor = os.open(self.path / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        held = False
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            held = True
        except BlockingIOError:
            return None
        finally:
            if not held:
                os.close(descriptor)
        return descriptor

    def record(self) -> Record:
        """What is noted about the last server; an empty record if that's missing or damaged.

        So it is in a copy of another folder, too: its socket is the other server's.
        """
        try:
            record = msgspec.json.decode(self._record.read_bytes(), type=Record)
        except (FileNotFoundError, msgspec.DecodeError):
            return Record()
        return record if record.folder == str(self.path) else Record()

    def note(self, *, port: int, socket: Path, pid: int = 0) -> None:
        """Replace the record, whole or not at all."""
        record = Record(folder=str(self.path), port=port, socket=str(socket), pid=pid, started_s=int(time.time()))
        draft = self._record.with_suffix(f".{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(record) + b"\n")
        draft.replace(self._record)

    def socket(self) -> Path | None:
        """Where the server listens; None if the folder's path is too long and no short one is noted."""
        near = self.path / "server.sock"
        if len(os.fsencode(near)) <= _LONGEST_SOCKET_PATH:
            return near
        noted = Path(self.record().socket)
        return noted if _private(noted.parent) else None

    def new_socket(self) -> Path:
        """Where the next server shall listen: the old place if there is one, else a new private folder."""
        known = self.socket()
        if known is not None:
            return known
        # 40: room for the new folder's and the socket's names.
        short = len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_SOCKET_PATH - 40
        return Path(tempfile.mkdtemp(prefix="tokenweir-", dir=None if short else "/tmp"), "server.sock")  # noqa: S108


def _private(folder: Path) -> bool:
    """Whether nobody else can put a socket there: the noted folder may have been cleaned away and taken over."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
