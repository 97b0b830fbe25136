"""The peer `litellm`: the script of its proxy's limiter, taken from its source without importing the package."""

from __future__ import annotations

import ast
import importlib.util
import time
from pathlib import Path

from redis.asyncio import Redis

from tests.bench.peers.load import Job, Limiter, serve

_FILE, _NAME = "proxy/hooks/parallel_request_limiter_v3.py", "BATCH_RATE_LIMITER_SCRIPT"


def _script() -> str:
    """The text of the script; looked up, since importing the package takes seconds and a hundred others."""
    spec = importlib.util.find_spec("litellm")
    assert spec
    assert spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0], _FILE).read_text("utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == _NAME:
            return str(ast.literal_eval(node.value))
    raise LookupError(f"{_NAME} isn't in {_FILE} any more")


async def _open(job: Job) -> Limiter:
    redis = Redis.from_url(job.url)
    script = redis.register_script(_script())
    keys = [f"{{{job.key}}}:window", f"{{{job.key}}}:requests"]

    async def acquire() -> bool:
        reply = await script(keys=keys, args=[int(time.time()), job.window_s])
        return int(reply[1]) <= job.limit

    return Limiter(acquire, redis.aclose)


if __name__ == "__main__":
    serve(_open)
