"""Servers of their own mean a pool of its own for each test, too."""

from __future__ import annotations

import secrets

import pytest

from tokenweir.keys import Keys


@pytest.fixture
def keys() -> Keys:
    """A pool nobody else uses; it goes with its servers."""
    return Keys(f"t{secrets.token_hex(4)}")
