"""What application code imports: the client, the limiter, and their errors.

Nothing here imports the engine: an application may have a `pipeline.py` of its own. Names are loaded
when first used, so that the command line starts without paying for the Redis client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tokenweir.errors import (
    ConfigError,
    LimitReached,
    PoolClosed,
    QueueFull,
    RequestError,
    ResultTimeout,
    StoreUnavailable,
    TokenweirError,
)

if TYPE_CHECKING:
    from tokenweir.client import Client
    from tokenweir.limiter import Grant, Limiter
    from tokenweir.wire import Event, Result, Status, Ticket

__version__ = "0.1.0"
__all__ = [
    "Client",
    "ConfigError",
    "Event",
    "Grant",
    "LimitReached",
    "Limiter",
    "PoolClosed",
    "QueueFull",
    "RequestError",
    "Result",
    "ResultTimeout",
    "Status",
    "StoreUnavailable",
    "Ticket",
    "TokenweirError",
]

_LAZY = {
    "Client": "tokenweir.client",
    "Event": "tokenweir.wire",
    "Grant": "tokenweir.limiter",
    "Limiter": "tokenweir.limiter",
    "Result": "tokenweir.wire",
    "Status": "tokenweir.wire",
    "Ticket": "tokenweir.wire",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'tokenweir' has no attribute {name!r}")
