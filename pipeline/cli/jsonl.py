"""A file of JSON lines that grows over several runs, kill -9 included. Each line names its `entry`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from pipeline.cli.parser import UsageError

_BLOCK = 65_536
_BEGIN = b'{"entry":'


class _Line(msgspec.Struct):
    entry: str


class Appended:
    """The file at `path`, open to append by one process at a time.

    The last line of a process that was killed may be torn: it is cut off, and its result is written again.

    Attributes:
        last_entry: the entry of the last whole line; empty in a new file.

    Raises:
        UsageError: it can't be written, is being written by another process, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise UsageError(f"can't write {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.last_entry = self._mend()
        except BlockingIOError as error:
            os.close(self._file)
            raise UsageError(f"{path} is being written by another process; name another file") from error
        except (ValueError, msgspec.DecodeError, OSError) as error:
            os.close(self._file)
            raise UsageError(f"{path} isn't a file of results ({error}); name another file") from error

    def append(self, lines: Sequence[bytes]) -> None:
        """Write whole lines; on return they survive this process, and a crash of the machine."""
        data = memoryview(b"".join(lines))
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._file)

    def _mend(self) -> str:
        """The entry of the last whole line; what stands behind it is cut off, if it is the start of one of ours.

        Raises:
            ValueError: these aren't our lines. Nothing was cut off.
        """
        end = os.fstat(self._file).st_size
        tail, start = b"", end
        while start > 0 and tail.count(b"\n") < 2:
            size = min(_BLOCK, start)
            start -= size
            tail = os.pread(self._file, size, start) + tail
        whole, newline, torn = tail.rpartition(b"\n")
        entry = msgspec.json.decode(whole.rpartition(b"\n")[2], type=_Line).entry if newline else ""
        if torn and not (torn.startswith(_BEGIN) or _BEGIN.startswith(torn)):
            raise ValueError("its last line is none of ours")
        if torn:
            os.ftruncate(self._file, end - len(torn))
        return entry
