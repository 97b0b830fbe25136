"""The premium stage with the real openai client, against a server that says what the test wants."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pipeline.config import Deployment
from pipeline.outcome import Done, Late, Outcome, Retry
from stages.premium import Premium

if TYPE_CHECKING:
    from tests.stages.conftest import Deliver, Script

pytestmark = pytest.mark.anyio
KEY = "sk-test-0123456789"
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    """A chunk with one choice, or without any when neither delta nor finish is given."""
    choices = (
        [] if delta is None and finish is None else [{"index": index, "delta": delta or {}, "finish_reason": finish}]
    )
    return event({"id": "c1", "object": "chat.completion.chunk", "model": "gpt-x", "choices": choices, **more})


def event(data: object) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


DONE = b"data: [DONE]\n\n"
HELLO = (
    chunk({"role": "assistant", "content": ""}) + chunk({"content": "Hel"}),
    chunk({"content": "lo"}) + chunk({}, "stop") + chunk(usage=USAGE) + DONE,
)


@pytest.fixture
async def premium(server: Script) -> AsyncIterator[Premium]:
    stage = build(server)
    yield stage
    await stage.aclose()


def build(server: Script, **settings: Any) -> Premium:
    deployment = Deployment(base_url=server.url + "/v1", model="gpt-4o", rpm=1, **settings)
    return Premium([deployment], keys={"primary": KEY}, max_attempts=3, concurrency=4, jitter=lambda low, _high: low)


def done(outcome: Outcome) -> Done:
    assert isinstance(outcome, Done)
    return outcome


async def test_a_request_becomes_an_answer(server: Script, premium: Premium, deliver: Deliver) -> None:
    """The caller gets the text, the whole completion, the provider's count and the times since ingest."""
    server.say(*HELLO)

    outcome = done(await premium.handle(deliver(metadata=msgspec.Raw(b'{"a":1}'), attempt=2, replay=1)))

    result = outcome.result
    body = msgspec.json.decode(result.body)
    assert (result.status, result.route, result.content, result.finish_reason) == ("ok", "premium", "Hello", "stop")
    assert (result.model, result.attempt, result.replay, bytes(result.metadata)) == ("gpt-x", 2, 1, b'{"a":1}')
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == USAGE
    assert (result.usage.total_tokens, result.usage.estimated, sum(outcome.used or ())) == (11, False, 11)
    assert 5 <= result.waited_ms <= result.ttft_ms <= result.total_ms


async def test_the_body_is_passed_on_whole(server: Script, premium: Premium, deliver: Deliver) -> None:
    """The provider sees every field of the caller's, our deployment's model, and asks for a stream with usage."""
    server.say(*HELLO)

    await premium.handle(deliver({"model": "any", "tools": [{"x": 1}], "unheard_of": [1.5, None]}))

    (call,) = server.calls
    assert call.path == "/v1/chat/completions"
    assert call.headers["authorization"] == f"Bearer {KEY}"
    assert call.body == {
        "messages": [{"role": "user", "content": "Where is my parcel?"}],
        "max_tokens": 20,
        "model": "gpt-4o",
        "tools": [{"x": 1}],
        "unheard_of": [1.5, None],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_deltas_come_as_they_are_written(server: Script, premium: Premium, deliver: Deliver) -> None:
    """The first words are with the caller while the model still writes; only the first choice is told."""
    more, heard, texts = asyncio.Event(), asyncio.Event(), []
    server.say(HELLO[0] + chunk({"content": "?"}, index=1), chunk({}, "stop", index=1) + HELLO[1], hold=more)

    def emit(text: str) -> None:
        texts.append(text)
        heard.set()

    async with asyncio.TaskGroup() as group:
        running = group.create_task(premium.handle(deliver({"n": 2}, emit=emit)))
        await heard.wait()
        early = list(texts)
        more.set()

    assert (early, texts) == (["Hel"], ["Hel", "lo"])
    assert done(running.result()).result.content == "Hello"


async def test_all_choices_are_put_together(server: Script, premium: Premium, deliver: Deliver) -> None:
    """With n = 2 both answers are in the completion, however their pieces were mixed."""
    server.say(
        chunk({"content": "a"}) + chunk({"content": "x"}, index=1) + chunk({"content": "b"}),
        chunk({}, "length", index=1) + chunk({}, "stop") + DONE,
    )

    result = done(await premium.handle(deliver({"n": 2}))).result

    choices = msgspec.json.decode(result.body)["choices"]
    assert [(one["message"]["content"], one["finish_reason"]) for one in choices] == [("ab", "stop"), ("x", "length")]
    assert (result.content, result.finish_reason) == ("ab", "stop")


async def test_usage_that_never_came_is_estimated(server: Script, premium: Premium, deliver: Deliver) -> None:
    """Without a count of the provider's the reservation stands, and the caller sees that the count is ours."""
    server.say(chunk({"content": "abcdef"}, "stop") + DONE)

    outcome = done(await premium.handle(deliver()))

    assert outcome.used is None
    assert outcome.result.usage.estimated
    assert outcome.result.usage.prompt_tokens == 7
    assert outcome.result.usage.completion_tokens >= 2


async def test_a_refused_connection_is_tried_again(server: Script, deliver: Deliver) -> None:
    """A provider that can't be reached costs an attempt, and waits longer each time."""
    server.url = "http://127.0.0.1:1"
    stage = build(server)

    outcome = await stage.handle(deliver(attempt=2))

    await stage.aclose()
    assert isinstance(outcome, Retry)
    assert (outcome.failure.reason, outcome.request.attempt) == ("connection_failed", 3)
    assert (outcome.wait_s, outcome.failure.pause_s) == (1.0, 0)


@pytest.mark.parametrize(
    ("settings", "silent", "reason"),
    [
        ({"first_byte_s": 0.02, "connect_s": 0.02}, True, "first_byte_timeout"),
        ({"call_s": 0.05}, True, "call_timeout"),
        ({"between_chunks_s": 0.05}, False, "between_chunks_timeout"),
        ({"call_s": 0.05}, False, "call_timeout"),
    ],
)
async def test_slow_providers_are_given_up(
    server: Script, deliver: Deliver, settings: dict[str, float], silent: bool, reason: str
) -> None:
    """Each of our own time-outs ends the call under its own name, and the client serves the next one."""
    server.say(*HELLO, silent=silent, hold=asyncio.Event())
    stage = build(server, **settings)

    outcome = await stage.handle(deliver())

    server.forget()
    server.say(*HELLO)
    again = await stage.handle(deliver())
    await stage.aclose()
    assert isinstance(outcome, Retry)
    assert outcome.failure.reason == reason
    assert done(again).result.content == "Hello"


async def test_an_answer_doesnt_wait_for_a_lingering_connection(
    server: Script, premium: Premium, deliver: Deliver
) -> None:
    """A provider that keeps the response open after its last event holds nobody up."""
    server.say(b"".join(HELLO), b"", b"more", hold=asyncio.Event())

    outcome = await premium.handle(deliver())

    assert done(outcome).result.content == "Hello"


async def test_calls_share_a_connection(server: Script, premium: Premium, deliver: Deliver) -> None:
    """Whole answers leave their connection to the next call, so that no call pays for a new one."""
    server.say(*HELLO)

    for _ in range(3):
        await premium.handle(deliver())

    assert len(server.peers) == 1


async def test_a_grant_for_an_unknown_deployment_goes_back(premium: Premium, deliver: Deliver) -> None:
    """In the middle of a rolling update no request is lost because its worker doesn't know a deployment yet."""
    outcome = await premium.handle(deliver(deployment="new"))

    assert isinstance(outcome, Retry)
    assert outcome.failure.reason == "deployment_unknown"


async def test_cancelling_at_any_moment_ends_the_call(server: Script, deliver: Deliver) -> None:
    """A stopping worker ends its calls wherever they are, and the client stays usable for the others."""
    stage = build(server)
    server.say(*HELLO)
    for steps in range(61):
        running = asyncio.ensure_future(stage.handle(deliver()))
        for _ in range(steps):
            await asyncio.sleep(0)

        running.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait([running])

        assert running.cancelled() or done(running.result()).result.ok
    outcome = await stage.handle(deliver())
    await stage.aclose()
    assert done(outcome).result.content == "Hello"


async def test_a_call_that_can_no_longer_be_made_in_time_is_not_made(
    server: Script, premium: Premium, deliver: Deliver
) -> None:
    """A worker that was kept from its call lets it go: the provider might count it in another window."""
    late = msgspec.structs.replace(deliver(), call_by=time.monotonic() - 0.001)

    outcome = await premium.handle(late)

    assert outcome == Late(request=late.request)
    assert server.calls == []
