"""The edge stage's background work: the local model is kept warm, and found again when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import structlog

from pipeline.config import Edge
from stages.edge import EdgeCall
from tests.support import eventually

if TYPE_CHECKING:
    from tests.stages.conftest import Deliver, Script

pytestmark = pytest.mark.anyio
JSON = "application/json"
LOADED = msgspec.json.encode({"model": "m", "response": "", "done": True, "done_reason": "load"})
HELLO = msgspec.json.encode(
    {"message": {"role": "assistant", "content": "Hello"}, "done": True, "done_reason": "stop", "eval_count": 1}
)


def build(server: Script, **settings: Any) -> EdgeCall:
    """A stage that waits next to nothing between its looks at the model."""
    edge = Edge(base_url=server.url, model="m", num_ctx=2048, **settings)
    return EdgeCall(edge, jitter=lambda low, _high: low / 100)


@asynccontextmanager
async def running(stage: EdgeCall) -> AsyncIterator[None]:
    """`stage` with its background work."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(stage.run(stop))
        yield
        stop.set()
    await stage.aclose()


async def test_ready_means_loaded(server: Script) -> None:
    """No request is given to the edge before its model is in memory; loading uses the calls' own context size."""
    server.say(b"", LOADED, hold=(loading := asyncio.Event()), content_type=JSON)
    stage = build(server)
    async with running(stage):
        await server.called.wait()
        early = stage.ready
        loading.set()
        await eventually(lambda: stage.ready)

    assert not early
    (call,) = server.calls
    assert call.path == "/api/generate"
    assert (call.body["options"], call.body["keep_alive"]) == ({"num_ctx": 2048}, "30m")
    assert not call.body.get("prompt")


async def test_a_missing_model_is_told_once_with_its_cure(server: Script) -> None:
    """The operator reads which command to run, and the edge comes back by itself once it has been run."""
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            server.say(b'{"error":"model \'m\' not found"}', status=404, content_type=JSON)
        server.say(LOADED, content_type=JSON)
        async with running(stage := build(server)):
            await eventually(lambda: stage.ready)

    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert warnings == [{"event": "edge_model_missing", "model": "m", "cure": "ollama pull m", "log_level": "warning"}]
    assert len(server.calls) == 4


async def test_a_load_may_take_its_time_but_not_for_ever(server: Script) -> None:
    """A load that hangs is started anew after `load_s`."""
    server.say(silent=True)
    async with running(stage := build(server, load_s=0.05)):
        await server.called.wait()
        server.forget()
        server.say(LOADED, content_type=JSON)
        await eventually(lambda: stage.ready)


async def test_failing_calls_close_the_edge_until_it_is_loaded_anew(server: Script, deliver: Deliver) -> None:
    """Three failures in a row stop the stream of requests; a successful load opens it again."""
    server.say(LOADED, content_type=JSON)
    async with running(stage := build(server)):
        await eventually(lambda: stage.ready)
        server.forget()
        server.say(b'{"error":"busy"}', status=503, content_type=JSON)
        states = []
        for _ in range(3):
            await stage.handle(deliver(edge=True))
            states.append(stage.ready)
        server.forget()
        server.say(LOADED, content_type=JSON)
        await eventually(lambda: stage.ready)

    assert states == [True, True, False]
    assert {call.path for call in server.calls} == {"/api/generate"}


async def test_a_good_call_forgives_earlier_ones(server: Script, deliver: Deliver) -> None:
    """Failures now and then don't close the edge, nor do requests that are at fault themselves."""
    server.say(LOADED, content_type=JSON)
    async with running(stage := build(server)):
        await eventually(lambda: stage.ready)
        for _ in range(3):
            server.forget()
            server.say(b"", status=500)
            await stage.handle(deliver(edge=True))
            await stage.handle(deliver({"n": 2}, edge=True))
            server.say(HELLO)
            await stage.handle(deliver(edge=True))
            await stage.handle(deliver(edge=True))
        ready = stage.ready

    assert ready


async def test_the_model_is_kept_warm(server: Script) -> None:
    """Before Ollama would unload it, the model's stay is renewed."""
    server.say(LOADED, content_type=JSON)
    async with running(build(server, keep_alive="10ms")):
        await eventually(lambda: len(server.calls) >= 2)

    assert {call.path for call in server.calls} == {"/api/generate"}


async def test_stopping_ends_a_load(server: Script) -> None:
    """A worker that stops doesn't wait for a model."""
    server.say(silent=True)
    async with asyncio.timeout(5), running(build(server)):
        await server.called.wait()
