"""What odd replies of a provider mean. Each costs exactly one HTTP call, whatever it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import structlog

from pipeline.config import Deployment
from pipeline.outcome import Done, Retry
from stages.premium import Premium

if TYPE_CHECKING:
    from tests.stages.conftest import Deliver, Script

pytestmark = pytest.mark.anyio
KEY = "sk-test-0123456789"
JSON = "application/json"


def build(server: Script) -> Premium:
    deployment = Deployment(base_url=server.url, rpm=1)
    return Premium([deployment], keys={"primary": KEY}, max_attempts=3, concurrency=1, jitter=lambda low, _high: low)


async def call(server: Script, delivery: Any) -> Any:
    """One delivery handled by a stage of its own; all that it was told must have been one call."""
    stage = build(server)
    outcome = await stage.handle(delivery)
    await stage.aclose()
    assert len(server.calls) == 1
    return outcome


def error(message: str = "no", **more: Any) -> bytes:
    return msgspec.json.encode({"error": {"message": message, **more}})


def event(data: object) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


TPM = "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29937, Requested 385."
TOO_LARGE = "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40210."
RESETS = {"x-ratelimit-reset-requests": "120ms", "x-ratelimit-reset-tokens": "6m0s"}

LIMITED = {
    "plain": ({}, error("slow down", type="requests"), "provider_429", 0.5),
    "no-body": ({"retry-after": "3"}, b"", "provider_429", 3),
    "milliseconds": ({"retry-after-ms": "1500", "retry-after": "9"}, error(), "provider_429", 1.5),
    "words": ({}, error(TPM + " Please try again in 8.64s."), "provider_429", 8.64),
    "impossible": ({"retry-after": "86400"}, error(), "provider_429", 900),
    "of-the-day": ({"retry-after": "86400"}, error("on requests per day (RPD): Limit 10000"), "provider_429", 86_400),
    "later-reset": (RESETS, error(), "provider_429", 360),
    "named-tokens": (RESETS, error(TPM, type="tokens"), "provider_429", 360),
    "named-requests": (RESETS, error("on requests per min (RPM): Limit 500"), "provider_429", 0.12),
    "nonsense": ({"retry-after": "soon", "x-ratelimit-reset-tokens": "-1"}, error(), "provider_429", 0.5),
    "zero": ({"retry-after": "0"}, error(), "provider_429", 0.5),
}


@pytest.mark.parametrize(("headers", "body", "reason", "pause_s"), LIMITED.values(), ids=LIMITED)
async def test_a_limit_closes_the_deployment_for_as_long_as_it_says(
    server: Script, deliver: Deliver, headers: dict[str, str], body: bytes, reason: str, pause_s: float
) -> None:
    """After a 429 nobody calls this deployment until the provider's own wait has passed; others may at once."""
    server.say(body, status=429, content_type=JSON, headers=headers)

    outcome = await call(server, deliver())

    assert isinstance(outcome, Retry)
    assert (outcome.failure.reason, outcome.request.attempt, outcome.failure.limited) == (reason, 2, True)
    assert outcome.failure.pause_s == pytest.approx(pause_s)
    assert outcome.wait_s == 0


PASSING = {
    "408": (408, error(), {}, "provider_408", 0.5),
    "409": (409, error(), {}, "provider_409", 0.5),
    "500": (500, error(), {}, "provider_500", 0.5),
    "502-html": (502, b"<html>bad gateway</html>", {}, "provider_502", 0.5),
    "503-later": (503, error(), {"retry-after": "7"}, "provider_503", 7),
    "529": (529, error("overloaded"), {}, "provider_529", 0.5),
    "429-overloaded": (429, error("The engine is currently overloaded"), {}, "overloaded", 0.5),
    "redirect": (307, b"", {"location": "/elsewhere"}, "provider_307", 0.5),
}


@pytest.mark.parametrize(("status", "body", "headers", "reason", "wait_s"), PASSING.values(), ids=PASSING)
async def test_passing_trouble_is_tried_again_later(
    server: Script, deliver: Deliver, status: int, body: bytes, headers: dict[str, str], reason: str, wait_s: float
) -> None:
    """The provider's own trouble delays this request only; the others keep their budget."""
    server.say(body, status=status, content_type=JSON, headers=headers)

    outcome = await call(server, deliver())

    assert isinstance(outcome, Retry)
    assert (outcome.failure.reason, outcome.request.attempt) == (reason, 2)
    assert (outcome.wait_s, outcome.failure.pause_s) == (wait_s, 0)


REJECTED = {
    "400": (400, error("bad tool"), "provider_rejected", "bad tool"),
    "context": (
        400,
        error("192041 of 128000", code="context_length_exceeded"),
        "provider_rejected",
        "192041 of 128000",
    ),
    "filter": (400, error("filtered", code="content_filter"), "content_filter", "filtered"),
    "filter-inside": (
        400,
        error("filtered", innererror={"code": "ResponsibleAIPolicyViolation"}),
        "content_filter",
        "filtered",
    ),
    "key-quoted": (400, error(f"no good: {KEY}."), "provider_rejected", "no good: ***."),
    "403": (403, b'{"detail":"not yours"}', "provider_rejected", "not yours"),
    "404": (404, b'{"error":"model not found"}', "provider_rejected", "model not found"),
    "413": (413, b"<html></html>", "provider_rejected", "the provider answered 413 without a readable error"),
    "422": (422, b'[{"error":{"message":"listed"}}]', "provider_rejected", "listed"),
    "too-large": (429, error(TOO_LARGE, type="tokens"), "too_large_for_limit", TOO_LARGE),
    "too-large-by-figures": (
        429,
        error("TPM: Limit 10, Used 0, Requested 11. Try again in 86400s"),
        "too_large_for_limit",
        "TPM: Limit 10, Used 0, Requested 11. Try again in 86400s",
    ),
    "too-large-413": (413, error(TOO_LARGE), "too_large_for_limit", TOO_LARGE),
}


@pytest.mark.parametrize(("status", "body", "code", "message"), REJECTED.values(), ids=REJECTED)
async def test_what_will_never_work_is_told_at_once(
    server: Script, deliver: Deliver, status: int, body: bytes, code: str, message: str
) -> None:
    """A request that the provider won't ever take isn't repeated: its caller reads the provider's reason."""
    server.say(body, status=status, content_type=JSON)

    outcome = await call(server, deliver())

    assert isinstance(outcome, Done)
    assert (outcome.result.status, outcome.result.code, outcome.used) == ("error", code, (0, 0))
    told = msgspec.json.decode(outcome.result.body)["error"]
    assert told == {"message": message, "type": "invalid_request_error", "code": code, "param": None}


NO_ANSWER = {
    "embedded-429": (JSON, b'{"id":null,"choices":null,"error":{"message":"x","code":429}}', "provider_429"),
    "embedded-502": (JSON, b'{"error":{"message":"x","code":"502"}}', "provider_502"),
    "embedded-no-code": (JSON, b'{"error":{"message":"x"}}', "provider_500"),
    "embedded-text": (JSON, b'{"error":"it broke"}', "provider_500"),
    "choices-empty": (JSON, b'{"id":"c","choices":[]}', "not_an_answer"),
    "choices-null": (JSON, b'{"id":"c","choices":null}', "not_an_answer"),
    "choices-missing": (JSON, b'{"id":"c"}', "not_an_answer"),
    "choices-text": (JSON, b'{"choices":"none"}', "not_an_answer"),
    "choice-text": (JSON, b'{"choices":["none"]}', "not_an_answer"),
    "not-an-object": (JSON, b"[1]", "not_an_answer"),
    "html": ("text/html", b"<html>Welcome</html>", "not_an_answer"),
    "empty": (JSON, b"", "not_an_answer"),
    "empty-stream": ("text/event-stream", b"", "not_an_answer"),
    "cut": ("text/event-stream", chunk({"content": "Hel"}), "stream_cut"),
    "done-without-reason": ("text/event-stream", chunk({"content": "Hel"}) + b"data: [DONE]\n\n", "stream_cut"),
    "error-event": (
        "text/event-stream",
        chunk({"content": "Hel"}) + b'event: error\ndata: {"message":"x","code":"server_error"}\n\n',
        "provider_500",
    ),
    "error-chunk": ("text/event-stream", chunk({"content": "Hel"}) + event({"error": {"code": 503}}), "provider_503"),
    "not-json": ("text/event-stream", b"data: {oops\n\n", "not_an_answer"),
}


@pytest.mark.parametrize(("content_type", "body", "reason"), NO_ANSWER.values(), ids=NO_ANSWER)
async def test_a_200_without_an_answer_is_a_failure(
    server: Script, deliver: Deliver, content_type: str, body: bytes, reason: str
) -> None:
    """A reply that only looks well is never handed to a caller as an answer."""
    server.say(body, content_type=content_type)

    outcome = await call(server, deliver())

    assert isinstance(outcome, Retry)
    assert outcome.failure.reason == reason


async def test_a_reset_connection_is_a_cut_answer(server: Script, deliver: Deliver) -> None:
    """Half an answer is no answer, even if the provider's connection breaks in the middle of it."""
    server.say(chunk({"content": "Hel"}), cut=True)

    outcome = await call(server, deliver())

    assert isinstance(outcome, Retry)
    assert outcome.failure.reason == "stream_cut"


async def test_an_answer_at_its_end_survives_a_reset(server: Script, deliver: Deliver) -> None:
    """A connection that breaks after the last word costs the count of tokens, not the answer."""
    server.say(chunk({"content": "Hello"}, "stop"), cut=True)

    outcome = await call(server, deliver())

    assert isinstance(outcome, Done)
    assert (outcome.result.content, outcome.used) == ("Hello", None)


NO_TEXT: dict[str, tuple[dict[str, Any], str]] = {
    "refusal": ({"refusal": "I won't."}, "stop"),
    "tool": (
        {"tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        "tool_calls",
    ),
    "length": ({"content": None}, "length"),
    "filter": ({}, "content_filter"),
    "empty": ({"content": ""}, "stop"),
}


@pytest.mark.parametrize(("delta", "finish"), NO_TEXT.values(), ids=NO_TEXT)
async def test_no_text_can_be_an_answer(server: Script, deliver: Deliver, delta: dict[str, Any], finish: str) -> None:
    """Refusals, tool calls and answers cut at the cap reach the caller as they are, with their reason."""
    server.say(chunk({"role": "assistant"}) + chunk(delta) + chunk({}, finish))

    outcome = await call(server, deliver())

    assert isinstance(outcome, Done)
    message = msgspec.json.decode(outcome.result.body)["choices"][0]["message"]
    assert (outcome.result.status, outcome.result.content, outcome.result.finish_reason) == ("ok", "", finish)
    assert {name: message[name] for name, value in delta.items() if value} == {n: v for n, v in delta.items() if v}
    assert (outcome.result.ttft_ms >= 0) == any(delta.values())


async def test_a_server_that_doesnt_stream_is_understood(server: Script, deliver: Deliver) -> None:
    """An OpenAI-compatible server may answer in one piece although a stream was asked for."""
    message = {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]}
    body = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": None}
    server.say(msgspec.json.encode(body), content_type=JSON)

    outcome = await call(server, deliver({"n": 2}))

    assert isinstance(outcome, Done)
    assert outcome.result.content == "Hello"


async def test_a_mislabelled_stream_is_understood(server: Script, deliver: Deliver) -> None:
    """Keep-alive comments and a wrong content type don't spoil an answer."""
    server.say(b": wait\n\n", chunk({"content": "Hello"}, "stop") + b"data: [DONE]\n\n", content_type=JSON)

    outcome = await call(server, deliver())

    assert isinstance(outcome, Done)
    assert outcome.result.content == "Hello"


@pytest.mark.parametrize(
    ("status", "body", "attempt", "code"),
    [
        (500, error("broken"), 3, "provider_unavailable"),
        (429, error("slow down"), 9, "provider_unavailable"),
        (429, error("pay", code="insufficient_quota"), 9, "quota_exhausted"),
        (401, error("no such key"), 9, "provider_rejected"),
    ],
)
async def test_attempts_come_to_an_end(
    server: Script, deliver: Deliver, status: int, body: bytes, attempt: int, code: str
) -> None:
    """A provider that fails every time can't keep a request for ever: its caller gets the last reason."""
    server.say(body, status=status, content_type=JSON)

    outcome = await call(server, deliver(attempt=attempt))

    assert isinstance(outcome, Done)
    assert (outcome.result.code, outcome.used) == (code, None)
    told = msgspec.json.decode(outcome.result.body)["error"]["message"]
    assert msgspec.json.decode(body)["error"]["message"] in told
    assert ("deployment 'primary'" in told and "must" in told) == (code != "provider_unavailable")


async def test_the_key_is_told_to_nobody(server: Script, deliver: Deliver) -> None:
    """However a provider quotes our key, neither results nor logs hold it."""
    quoting = f"key {KEY} and Bearer abc.def and sk-proj-ABCDEFGH1234 are wrong"
    with structlog.testing.capture_logs() as logs:
        server.say(error(quoting), status=403, content_type=JSON)
        rejected = await call(server, deliver())
        server.forget()
        server.say(b"data: {" + KEY.encode() + b"\n\n")
        retried = await call(server, deliver(attempt=3))

    told = repr((rejected, retried, logs))
    assert not any(secret in told for secret in (KEY, "abc.def", "ABCDEFGH1234"))
