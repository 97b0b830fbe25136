"""The edge stage with the real ollama client, against a server that says what the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pipeline.config import Edge
from pipeline.outcome import Done, Forward, Outcome
from stages.edge import EdgeCall

if TYPE_CHECKING:
    from tests.stages.conftest import Deliver, Script

pytestmark = pytest.mark.anyio
NDJSON = "application/x-ndjson"


def line(text: str = "", **more: Any) -> bytes:
    return (
        msgspec.json.encode({"model": "m", "message": {"role": "assistant", "content": text}, "done": False, **more})
        + b"\n"
    )


def end(reason: str = "stop", **more: Any) -> bytes:
    return line(done=True, done_reason=reason, **more)


HELLO = (line("Hel"), line("lo") + end(prompt_eval_count=9, eval_count=2))


def build(server: Script, **settings: Any) -> EdgeCall:
    return EdgeCall(Edge(base_url=server.url, model="m", num_ctx=2048, **settings))


@pytest.fixture
async def edge(server: Script) -> AsyncIterator[EdgeCall]:
    stage = build(server)
    yield stage
    await stage.aclose()


def done(outcome: Outcome) -> Done:
    assert isinstance(outcome, Done)
    return outcome


async def test_a_request_becomes_an_answer(server: Script, edge: EdgeCall, deliver: Deliver) -> None:
    """The caller gets the same kind of result as from premium: text, completion, counts, times."""
    server.say(*HELLO, content_type=NDJSON)
    texts: list[str] = []

    result = done(await edge.handle(deliver(emit=texts.append, metadata=msgspec.Raw(b'{"a":1}')))).result

    body = msgspec.json.decode(result.body)
    assert texts == ["Hel", "lo"]
    assert (result.status, result.route, result.model, result.content) == ("ok", "edge", "m", "Hello")
    assert (result.finish_reason, result.usage.total_tokens, bytes(result.metadata)) == ("stop", 11, b'{"a":1}')
    assert (body["object"], body["model"]) == ("chat.completion", "m")
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert body["usage"] == {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    assert 5 <= result.waited_ms <= result.ttft_ms <= result.total_ms


async def test_the_chat_is_translated(server: Script, edge: EdgeCall, deliver: Deliver) -> None:
    """Ollama gets the texts, our context size, the request's own cap and its sampling settings."""
    server.say(*HELLO, content_type=NDJSON)
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    ]

    await edge.handle(
        deliver({"messages": messages, "temperature": 0, "top_p": 0.5, "seed": 1, "stop": "END", "user": "u"})
    )

    (call,) = server.calls
    assert call.path == "/api/chat"
    assert call.body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one\ntwo"},
    ]
    assert call.body["options"] == {
        "num_ctx": 2048,
        "num_predict": 20,
        "temperature": 0,
        "top_p": 0.5,
        "seed": 1,
        "stop": ["END"],
    }
    assert (call.body["model"], call.body["keep_alive"], call.body["stream"]) == ("m", "30m", True)


@pytest.mark.parametrize(
    ("wanted", "sent"),
    [
        ({"type": "json_object"}, "json"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}, {"type": "object"}),
        ({"type": "text"}, None),
    ],
)
async def test_a_wanted_form_is_kept(
    server: Script, edge: EdgeCall, deliver: Deliver, wanted: dict[str, Any], sent: Any
) -> None:
    """A request for JSON gets JSON from the local model, too."""
    server.say(*HELLO, content_type=NDJSON)

    await edge.handle(deliver({"response_format": wanted}))

    assert server.calls[0].body.get("format") == sent


TROUBLE: dict[str, tuple[int, bytes]] = {
    "busy": (503, b'{"error":"server busy"}'),
    "broken": (500, b'{"error":"runner died"}'),
    "missing": (404, b'{"error":"model not found"}'),
    "redirect": (302, b""),
    "error-line": (200, line("Hel") + b'{"error":"out of memory"}\n'),
    "no-done": (200, line("Hel") + line("lo")),
    "load-notice": (200, end("load")),
    "thinking-only": (200, line("", message={"role": "assistant", "content": "", "thinking": "hm"}) + end("length")),
    "empty": (200, b""),
    "not-json": (200, b"<html>\n"),
    "not-an-object": (200, b"[]\n"),
    "no-message": (200, b'{"done":true}\n'),
}


@pytest.mark.parametrize(("status", "body"), TROUBLE.values(), ids=TROUBLE)
async def test_edge_trouble_sends_a_request_back_to_its_gate(
    server: Script, edge: EdgeCall, deliver: Deliver, status: int, body: bytes
) -> None:
    """Whatever the local model does, the request finds another way, and is called for only once here."""
    server.say(body, status=status, content_type=NDJSON)

    outcome = await edge.handle(deliver(edge=True, simple=True, priority="standard", attempt=2))

    assert isinstance(outcome, Forward)
    assert (outcome.to, outcome.request.edge, outcome.request.simple) == ("gate:standard", False, True)
    assert outcome.request.attempt == 2
    assert len(server.calls) == 1


async def test_a_cut_connection_is_edge_trouble(server: Script, edge: EdgeCall, deliver: Deliver) -> None:
    """A server that dies in the middle of an answer costs the caller nothing but time."""
    server.say(line("Hel"), cut=True, content_type=NDJSON)

    outcome = await edge.handle(deliver(edge=True))

    assert isinstance(outcome, Forward)


async def test_a_reader_of_deltas_sees_the_new_start(server: Script, edge: EdgeCall, deliver: Deliver) -> None:
    """Deltas of a failed answer are followed by those of a higher attempt, never mixed with the next answer's."""
    server.say(line("Hel"), content_type=NDJSON)

    outcome = await edge.handle(deliver(edge=True, stream=True))

    assert isinstance(outcome, Forward)
    assert outcome.request.attempt == 2


async def test_a_slow_model_is_given_up(server: Script, deliver: Deliver) -> None:
    """A call that takes longer than allowed goes back to the gate."""
    server.say(silent=True)
    stage = build(server, call_s=0.05)

    outcome = await stage.handle(deliver(edge=True))

    await stage.aclose()
    assert isinstance(outcome, Forward)


async def test_an_unreachable_server_is_edge_trouble(server: Script, deliver: Deliver) -> None:
    """Without a local server every request goes on to the gate."""
    server.url = "http://127.0.0.1:1"
    stage = build(server)

    outcome = await stage.handle(deliver(edge=True))

    await stage.aclose()
    assert isinstance(outcome, Forward)


@pytest.mark.parametrize(("body", "fields"), [({"n": 2}, {}), ({}, {"prompt_tokens": 2040})], ids=["n", "too-long"])
async def test_what_the_model_would_get_wrong_isnt_asked(
    server: Script, edge: EdgeCall, deliver: Deliver, body: dict[str, Any], fields: dict[str, Any]
) -> None:
    """Ollama cuts long prompts in silence and knows one choice only: neither is tried."""
    outcome = await edge.handle(deliver(body, edge=True, **fields))

    assert isinstance(outcome, Forward)
    assert server.calls == []


async def test_cancelling_at_any_moment_ends_the_call(server: Script, deliver: Deliver) -> None:
    """A stopping worker ends its calls wherever they are, and the client stays usable for the others."""
    stage = build(server)
    server.say(*HELLO, content_type=NDJSON)
    for steps in range(61):
        task = asyncio.ensure_future(stage.handle(deliver()))
        for _ in range(steps):
            await asyncio.sleep(0)

        task.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait([task])

        assert task.cancelled() or done(task.result()).result.ok
    outcome = await stage.handle(deliver())
    await stage.aclose()
    assert done(outcome).result.content == "Hello"
