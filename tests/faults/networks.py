"""The networks of a whole deployment: to its Redis, and to its provider's chat endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from pipeline.sandbox.ready import Ready
from tests.faults.proxy import Proxy


class Networks(NamedTuple):
    """What lies between the workers and those whom they call."""

    redis: Proxy
    provider: Proxy

    def reached(self, sandbox: Ready) -> Ready:
        """The sandbox with its chat endpoint by way of the network."""
        ways = f":{port_of(sandbox.premium)}", f":{self.provider.port}"
        return msgspec.structs.replace(sandbox, premium=sandbox.premium.replace(*ways))


@contextmanager
def open_networks(redis_port: int, premium: str) -> Iterator[Networks]:
    """Both, faithful until told otherwise. `premium` is the provider's base URL."""
    with Proxy(redis_port) as redis, Proxy(port_of(premium)) as provider:
        yield Networks(redis, provider)


def port_of(url: str) -> int:
    """Where it listens."""
    port = urlsplit(url).port
    assert port
    return port
