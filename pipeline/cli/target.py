"""Which Redis and which pool a command is about."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from pipeline.config import Config, Pool, environment, load
from pipeline.embedded import EmbeddedError, EmbeddedServer, ensure, state_dir_from_url
from tokenweir.errors import ConfigError, StoreUnavailable
from tokenweir.keys import Keys
from tokenweir.places import check_url
from tokenweir.urls import masked_url


class Target(NamedTuple):
    """One pool on one Redis.

    Attributes:
        url: a URL to connect to, never `embedded:`.
        named: the URL as it was configured, without its password: for people.
        server: the share in the embedded server; it lasts as long as this process.
    """

    config: Config
    pool_name: str
    pool: Pool
    url: str
    named: str
    keys: Keys
    server: EmbeddedServer | None


def configured(args: argparse.Namespace) -> Config:
    """The configuration that `--config` names.

    Raises:
        ConfigError: see `pipeline.config.load`.
    """
    return load(args.config, environment())


def resolve(args: argparse.Namespace) -> Target:
    """What `--redis`, `--pool` and `--config` name; starts or joins the embedded server where that is meant.

    Raises:
        ConfigError: the configuration can't be used, or has no such pool.
        StoreUnavailable: the embedded server can't be started.
    """
    config = configured(args)
    pool_name, pool = config.pool(args.pool)
    named = args.redis or config.redis.url
    server = _embedded(named) if named.partition(":")[0] == "embedded" else None
    if server is None:
        check_url(named)
    return Target(
        config=config,
        pool_name=pool_name,
        pool=pool,
        url=server.url if server else named,
        named=masked_url(named),
        keys=Keys(pool_name, prefix=config.redis.prefix),
        server=server,
    )


def _embedded(url: str) -> EmbeddedServer:
    try:
        return ensure(state_dir_from_url(url, environment()))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except EmbeddedError as error:
        raise StoreUnavailable(str(error)) from error
