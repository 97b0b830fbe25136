"""Whether the provider and the edge can be reached, and know us. No model is called, no key is shown."""

from __future__ import annotations

from typing import Any

import aiohttp

from pipeline.config import Deployment, Edge, secret
from pipeline.store.finding import Finding
from tokenweir.errors import ConfigError

_PATIENCE = aiohttp.ClientTimeout(total=5)


def key_of(deployment: Deployment) -> tuple[str, Finding]:
    """The deployment's key, empty when there is none, and what is to be said about it."""
    about = f"key {deployment.name}"
    try:
        key = secret(deployment.api_key)
    except ConfigError as error:
        name = deployment.api_key.removeprefix("env:")
        return "", Finding("FAIL", about, str(error), f"export {name}=..., or name another variable as api_key")
    if deployment.api_key.startswith("env:"):
        return key, Finding("ok", about, f"set by {deployment.api_key.removeprefix('env:')}")
    cure = 'put it into the environment and write api_key = "env:NAME"'
    return key, Finding("warn", about, "stands in the configuration file", cure)


async def provider(deployment: Deployment, key: str) -> Finding:
    """Ask the provider for its models: that costs nothing."""
    about, url = f"provider {deployment.name}", f"{deployment.base_url.rstrip('/')}/models"
    try:
        status, body = await _get(url, {"Authorization": f"Bearer {key}"} if key else {})
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return Finding("FAIL", about, f"{url}: {_why(error)}", "look at base_url, the network and any proxy")
    if status in (401, 403):
        return Finding(
            "FAIL", about, f"refuses the key ({status})", "look at api_key, and at the key's project and rights"
        )
    if status != 200:
        return Finding(
            "warn", about, f"reached, but GET {url} says {status}", "look at base_url: it mostly ends in /v1"
        )
    known = [model.get("id") for model in _list(body, "data")]
    if known and deployment.model not in known:
        cure = "look at `model`; `check` asked the provider for its list"
        return Finding("warn", about, f"reached, but doesn't list {deployment.model}", cure)
    return Finding(
        "ok", about, f"{deployment.base_url} has {deployment.model}" if known else f"{deployment.base_url} answers"
    )


async def edge(settings: Edge) -> Finding:
    """Ask the edge for its models."""
    url = f"{settings.base_url.rstrip('/')}/api/tags"
    try:
        status, body = await _get(url, {})
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return Finding(
            "FAIL", "edge", f"{url}: {_why(error)}", "start it (`ollama serve`), or mend pools.*.edge.base_url"
        )
    if status != 200:
        return Finding("FAIL", "edge", f"GET {url} says {status}", "look at pools.*.edge.base_url: is that Ollama?")
    names = {str(model.get("name", "")).removesuffix(":latest") for model in _list(body, "models")}
    if settings.model.removesuffix(":latest") not in names:
        return Finding("FAIL", "edge", f"reached, but has no {settings.model}", f"ollama pull {settings.model}")
    return Finding("ok", "edge", f"{settings.base_url} has {settings.model}")


async def _get(url: str, headers: dict[str, str]) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(timeout=_PATIENCE, trust_env=True) as session,
        session.get(url, headers=headers, allow_redirects=False) as reply,
    ):
        try:
            return reply.status, await reply.json(content_type=None)
        except ValueError:
            return reply.status, None


def _list(body: Any, name: str) -> list[dict[str, Any]]:
    """The objects of a list in a reply; whatever else came is no list."""
    found = body.get(name) if isinstance(body, dict) else None
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _why(error: BaseException) -> str:
    return "no answer within 5 s" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
