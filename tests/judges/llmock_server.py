"""llmock, a provider simulator by somebody else: a bucket per key, refilled steadily, and a journal of all calls."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from llmock.ratelimit import requested_tokens

from tests.integration.processes import wait_until
from tests.support import free_port


class Record(msgspec.Struct, frozen=True):
    """One call in llmock's journal; `started_at` is of the system's monotonic clock.

    Attributes:
        fault: `ratelimit:requests` or `ratelimit:tokens` where a bucket refused it.
    """

    model: str
    status: int
    started_at: float
    completed: bool
    body: dict[str, Any]
    fault: str | None = None

    @property
    def tokens(self) -> int:
        """What llmock charges for it: a quarter of the bytes sent, and the output cap."""
        return requested_tokens(self.body, len(msgspec.json.encode(self.body)))


class Llmock:
    """A running server."""

    def __init__(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self._journal = f"http://127.0.0.1:{port}/_llmock/requests"

    def journal(self, model: str = "") -> list[Record]:
        """The calls that asked for `model`, or all, in the order of arrival."""
        with urllib.request.urlopen(self._journal, timeout=10) as reply:
            found = msgspec.convert(msgspec.json.decode(reply.read())["requests"], list[Record])
        return [record for record in found if model in ("", record.model)]

    def answers(self) -> bool:
        """Whether it is up."""
        try:
            return self.journal() == []
        except OSError:
            return False


@contextmanager
def llmock(*, rpm: int, tpm: int) -> Iterator[Llmock]:
    """A server that allows each key so much, for the length of the block."""
    port = free_port()  # it doesn't tell which port it took
    words = [str(Path(sys.executable).with_name("llmock")), "serve", "--host=127.0.0.1", f"--port={port}"]
    limits = [f"--rpm={rpm}", f"--tpm={tpm}", "--latency-ms=5", "--log-level=warning"]
    process = subprocess.Popen([*words, *limits], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        server = Llmock(port)
        wait_until(server.answers, 30, why="llmock doesn't answer")
        yield server
    finally:
        process.terminate()
        process.wait(15)
