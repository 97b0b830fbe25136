"""The configuration: one frozen tree, read once, handed down as plain values.

The only module that reads the environment. Nothing below `app` knows where a value came from. Unknown
keys are errors that name the nearest known one: a typo must not pass in silence.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from tokenweir.errors import ConfigError
from tokenweir.places import check_url
from tokenweir.terms import DAY_LIMITS, WINDOW_LIMITS, Enforcement, Settlement
from tokenweir.urls import masked_url

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class _Tree(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file: immutable, and strict about its keys."""


class Redis(_Tree, frozen=True):
    """Where the streams live. `embedded:` starts a local server that all local commands share; docs/redis.md has the
    URLs of one server, of Sentinels and of a Cluster.
    """

    url: str = "embedded:"
    prefix: Name = "tokenweir"


class Deployment(_Tree, frozen=True):
    """One key, endpoint and model at a provider, with what that account allows.

    Attributes:
        rpm, tpm, itpm, otpm: requests and tokens (in all, of the prompt, of the output) that the provider allows
            per window. rpd, tpd: requests and tokens per day. At least one of the six is set.
        max_in_flight: calls that the provider allows at the same time.
        window_s: the provider's window. day_resets_at: `HH:MM` UTC where its day begins; without, any 24 hours count.
        send_within_s: longest time from our grant until the provider has counted the call; default 1 s, or 0.2 s
            under `quantised`.
        enforcement: `auto` is safe against every usual way of counting whole windows; `continuous` allows larger
            bursts where the provider refills steadily (OpenAI, Groq); `quantised:10s` and `quantised:1s` are for
            providers that count requests in parts of a minute (Azure).
        settlement: what becomes of tokens reserved but not used. `none` keeps them charged; `refund` gives
            them back, right only where the provider does so too. `auto` begins as `none` and becomes `refund` once
            the provider's headers have proved that it refunds.
        connect_s, first_byte_s, between_chunks_s, call_s: our own time-outs for a call.
    """

    name: Name = "primary"
    base_url: str = "https://api.openai.com/v1"
    api_key: str = "env:OPENAI_API_KEY"
    model: str = "gpt-4o"
    rpm: Count | None = None
    tpm: Count | None = None
    itpm: Count | None = None
    otpm: Count | None = None
    rpd: Count | None = None
    tpd: Count | None = None
    max_in_flight: Count | None = None
    window_s: Positive = 60.0
    day_resets_at: Annotated[str, msgspec.Meta(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")] | None = None
    send_within_s: Positive | None = None
    enforcement: Enforcement = "auto"
    settlement: Settlement = "auto"
    connect_s: Positive = 5.0
    first_byte_s: Positive = 60.0
    between_chunks_s: Positive = 30.0
    call_s: Positive = 300.0


class Edge(_Tree, frozen=True):
    """The local model that takes simple requests which the budget has no room for.

    Attributes:
        tasks: the tasks it may answer. num_ctx: its context in tokens; larger requests don't go there.
        concurrency: calls at once in one worker process. queue: how many may wait beyond the free slots.
    """

    base_url: str = "http://localhost:11434"
    model: str = "llama3:8b-instruct-q4_K_M"
    tasks: tuple[str, ...] = ("intent", "route")
    num_ctx: Count = 8192
    keep_alive: str = "30m"
    concurrency: Count = 4
    queue: Annotated[int, msgspec.Meta(ge=0)] = 8
    call_s: Positive = 60.0
    load_s: Positive = 300.0


class Caps(_Tree, frozen=True):
    """Output cap of a request that brings none, by class; reserved by the gate and sent to the provider."""

    interactive: Count = 512
    standard: Count = 512
    batch: Count = 512


class Pool(_Tree, frozen=True):
    """What one gate decides over: deployments that can stand in for each other, and one edge.

    Attributes:
        models: patterns of requested model names that come here.
        max_request_tokens: the largest request accepted, prompt and cap; default half the largest token limit.
        max_waiting: beyond it, submit is refused with retry-after.
        lease_s: how long a worker owns an entry without a sign of life.
        drain_s: how long a stopping worker finishes what it holds before it hands the rest back.
        max_deliveries, max_attempts: after so many an entry is dead / a call is given up.
        status_ttl_s: how long a result can be asked for.
        responses_kept, responses_age_s: how many results stay on `responses`, and how long; dead_kept, dead_age_s: the
            same of dead letters.
        premium_concurrency: calls at once in one worker process.
    """

    models: tuple[str, ...] = ("*",)
    deployments: Annotated[tuple[Deployment, ...], msgspec.Meta(min_length=1)] = (Deployment(rpm=500, tpm=30_000),)
    edge: Edge | None = None
    caps: Caps = Caps()
    max_request_tokens: Count | None = None
    max_body_bytes: Count = 1_048_576
    max_waiting: Count = 100_000
    lease_s: Positive = 30.0
    drain_s: Positive = 20.0
    max_deliveries: Count = 3
    max_attempts: Count = 3
    status_ttl_s: Count = 3600
    responses_kept: Count = 100_000
    responses_age_s: Count = 7 * 86_400
    dead_kept: Count = 100_000
    dead_age_s: Count = 14 * 86_400
    premium_concurrency: Count = 16


class Metrics(_Tree, frozen=True):
    """Where each worker process serves `/metrics` and health; port 0 takes a free one, each process its own."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0


class Config(_Tree, frozen=True):
    """Everything that can be configured."""

    redis: Redis = Redis()
    pools: Annotated[dict[Name, Pool], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: {"main": Pool()}
    )
    metrics: Metrics = Metrics()

    def pool(self, name: str | None = None) -> tuple[str, Pool]:
        """The pool `name` and its settings; without a name the first one.

        Raises:
            ConfigError: no such pool.
        """
        chosen = name or next(iter(self.pools))
        if chosen not in self.pools:
            raise ConfigError(f"no pool {chosen!r}; configured: {', '.join(self.pools)}")
        return chosen, self.pools[chosen]


def load(path: Path | None = None, env: Mapping[str, str] | None = None) -> Config:
    """The configuration from `path` (default: `tokenweir.toml` here, or `$TOKENWEIR_CONFIG`), then the environment.

    `REDIS_URL` overrides `redis.url`. Without a file the defaults apply.

    Raises:
        ConfigError: one line with the place, the reason and the nearest known key.
    """
    env = os.environ if env is None else env
    named = path or (Path(env["TOKENWEIR_CONFIG"]) if env.get("TOKENWEIR_CONFIG") else None)
    tree: dict[str, Any] = {}
    chosen = named or Path("tokenweir.toml")
    if named or chosen.exists():
        try:
            tree = tomllib.loads(chosen.read_text())
        except OSError as error:
            raise ConfigError(f"{chosen}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{chosen}: not TOML: {error}") from error
    redis = tree.get("redis", {})
    if env.get("REDIS_URL") and isinstance(redis, dict):
        tree["redis"] = {**redis, "url": env["REDIS_URL"]}
    return parse(tree, where=str(chosen))


def parse(tree: Mapping[str, Any], *, where: str = "configuration") -> Config:
    """`tree` as a configuration, checked as a whole.

    Raises:
        ConfigError: see `load`.
    """
    endless = _endless(tree)
    if endless:
        raise ConfigError(f"{where}: {endless} must be a finite number")
    try:
        config = msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_explain(str(error))}") from error
    if config.redis.url.partition(":")[0] != "embedded":
        try:
            check_url(config.redis.url)
        except ConfigError as error:
            raise ConfigError(f"{where}: redis.url: {str(error).removeprefix('Redis URL: ')}") from error
    for name, pool in config.pools.items():
        names = [deployment.name for deployment in pool.deployments]
        if len(set(names)) != len(names):
            raise ConfigError(f"{where}: pools.{name}: two deployments have the same name")
        for deployment in pool.deployments:
            if all(getattr(deployment, limit) is None for limit in (*WINDOW_LIMITS, *DAY_LIMITS)):
                raise ConfigError(f"{where}: pools.{name}: deployment {deployment.name!r} has no limit; set rpm or tpm")
    return config


def secret(value: str, env: Mapping[str, str] | None = None) -> str:
    """The secret that `value` names: `env:NAME` reads the environment, anything else stands for itself.

    Raises:
        ConfigError: the variable isn't set.
    """
    env = os.environ if env is None else env
    if not value.startswith("env:"):
        return value
    name = value.removeprefix("env:")
    if not env.get(name):
        raise ConfigError(f"environment variable {name} is not set; it holds the provider's key")
    return env[name]


def environment() -> Mapping[str, str]:
    """The process's environment, for the few who hand it on (child processes, state folder)."""
    return os.environ


def masked(config: Config) -> dict[str, Any]:
    """The resolved configuration as plain values, secrets masked, for people to read."""
    tree: dict[str, Any] = msgspec.to_builtins(config)
    tree["redis"]["url"] = masked_url(tree["redis"]["url"])
    for pool in tree["pools"].values():
        if pool["edge"]:
            pool["edge"]["base_url"] = masked_url(pool["edge"]["base_url"])
        for deployment in pool["deployments"]:
            deployment["base_url"] = masked_url(deployment["base_url"])
            if not deployment["api_key"].startswith("env:"):
                deployment["api_key"] = "***"
    return tree


def _endless(tree: object, name: str = "") -> str:
    """The key that holds an infinity or no number at all, which TOML allows and nothing here can count with."""
    if isinstance(tree, Mapping):
        return next(filter(None, (_endless(value, str(key)) for key, value in tree.items())), "")
    if isinstance(tree, list | tuple):
        return next(filter(None, (_endless(value, name) for value in tree)), "")
    return name if isinstance(tree, float) and not math.isfinite(tree) else ""


def _known_keys() -> set[str]:
    found: set[str] = set()
    for table in (Config, Redis, Pool, Deployment, Edge, Caps, Metrics):
        found.update(table.__struct_fields__)
    return found


def _explain(text: str) -> str:
    """msgspec's words, with the nearest known key where one was mistyped."""
    unknown = re.search(r"unknown field `([^`]+)`", text)
    if not unknown:
        return text
    near = difflib.get_close_matches(unknown.group(1), sorted(_known_keys()), n=1)
    return text + (f"; did you mean `{near[0]}`?" if near else "")
