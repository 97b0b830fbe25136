"""Tests that measure the machine run alone, also where the suite runs several at a time.

Registered by the root conftest. Two locks between the processes of one run: whoever wants to run alone keeps the door
shut until all others have left.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Each test waits for its turn, set-up included."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if not run:
        return (yield)
    with _turn(Path(tempfile.gettempdir(), f"tw-turns-{run}"), alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def _turn(lock: Path, *, alone: bool) -> Iterator[None]:
    with open(f"{lock}-door", "w") as door, open(f"{lock}-room", "w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
