"""What a log line shows, and what it never does."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
import structlog

from pipeline import logs


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Where the log goes in this test."""
    out = io.StringIO()
    logs.setup(stream=out)
    yield out
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("key sk-proj-0123456789abc is wrong", "key sk-*** is wrong"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ("redis://user:pa:ss@host:6379/0", "redis://user:***@host:6379/0"),
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
    ],
)
def test_secrets_are_masked_and_addresses_are_not(lines: io.StringIO, said: str, shown: str) -> None:
    """A key that finds its way into a line is masked; a host and its port stay readable."""
    structlog.get_logger().info("thing_happened", text=said)

    assert json.loads(lines.getvalue())["text"] == shown


def test_a_line_is_one_json_object_off_a_terminal(lines: io.StringIO) -> None:
    """Machines read one object a line: event, level, time in UTC and the fields."""
    structlog.get_logger().warning("thing_happened", count=3)

    (line,) = lines.getvalue().splitlines()
    said = json.loads(line)
    assert (said["event"], said["level"], said["count"]) == ("thing_happened", "warning", 3)
    assert said["timestamp"].endswith("Z")
