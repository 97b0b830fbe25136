"""Very many requests leave nothing behind. `python -m tests.chaos.many` sends 50,000; here are some less."""

from __future__ import annotations

import pytest

from tests.chaos.many import play


@pytest.mark.slow
def test_thousands_of_requests_leave_redis_as_it_was() -> None:
    """5,000 requests: one result each, no stream holds anything, and Redis's memory is within a tenth of before."""
    passed = play("valkey", 5000, lambda _count: None)

    assert passed.broken == {}
    assert passed.results == 5000
