"""Deployments that are out until a person acts, and what every response's headers say on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import structlog

from pipeline.config import Deployment
from pipeline.outcome import Reading, Retry
from stages.premium import Premium

if TYPE_CHECKING:
    from tests.stages.conftest import Deliver, Script

pytestmark = pytest.mark.anyio
JSON = "application/json"


def build(server: Script) -> Premium:
    deployment = Deployment(base_url=server.url, rpm=1)
    return Premium([deployment], keys={"primary": "sk-x"}, max_attempts=3, concurrency=1)


def error(message: str = "no", **more: Any) -> bytes:
    return msgspec.json.encode({"error": {"message": message, **more}})


ANSWER = msgspec.json.encode(
    {"id": "c", "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]}
)
OUT = {
    "quota": (429, error("pay", code="insufficient_quota", type="insufficient_quota"), "quota_exhausted"),
    "quota-402": (402, error("pay"), "quota_exhausted"),
    "quota-inside": (200, error("pay", code="insufficient_quota"), "quota_exhausted"),
    "key": (401, error("Incorrect API key provided", code="invalid_api_key"), "key_refused"),
    "key-no-body": (401, b"", "key_refused"),
    "key-inside": (200, error("no", type="authentication_error"), "key_refused"),
    "permission": (403, error("your key may not use this model", type="permission_error"), "key_refused"),
    "permission-google": (403, error("no", status="PERMISSION_DENIED"), "key_refused"),
    "country": (403, error("no", code="unsupported_country_region_territory"), "key_refused"),
}


@pytest.mark.parametrize(("status", "body", "reason"), OUT.values(), ids=OUT)
async def test_a_key_or_an_account_that_is_refused_takes_the_deployment_out(
    server: Script, deliver: Deliver, status: int, body: bytes, reason: str
) -> None:
    """It is closed for a minute, its rate isn't narrowed, and the request may go elsewhere at once."""
    server.say(body, status=status, content_type=JSON, headers={"retry-after": "3"})

    stage = build(server)

    outcome = await stage.handle(deliver())

    await stage.aclose()
    assert isinstance(outcome, Retry)
    assert (outcome.failure, outcome.wait_s) == ((reason, 60, False), 0)


async def test_an_incident_is_said_once_and_its_end_too(server: Script, deliver: Deliver) -> None:
    """Ten refused calls are one error in the log, with its cure; the next incident is another one."""
    stage = build(server)
    with structlog.testing.capture_logs() as logs:
        for status in [401] * 10 + [200] * 2 + [401] * 2:
            server.forget()
            server.say(OUT["key"][1] if status == 401 else ANSWER, status=status, content_type=JSON)
            await stage.handle(deliver())
    await stage.aclose()

    said = [line for line in logs if line["event"].startswith("deployment_")]
    assert [line["event"] for line in said] == ["deployment_out", "deployment_back", "deployment_out"]
    assert (said[0]["log_level"], said[0]["deployment"], said[0]["reason"]) == ("error", "primary", "key_refused")
    assert "limits resume primary" in said[0]["cure"]


RATES = {
    "x-ratelimit-limit-requests": "500",
    "x-ratelimit-remaining-requests": "7",
    "x-ratelimit-reset-requests": "59s",
    "x-ratelimit-limit-tokens": "-1",
    "x-ratelimit-remaining-tokens": "-1",
}


@pytest.mark.parametrize("status", [200, 429, 500])
async def test_what_the_headers_say_is_heard_at_once(server: Script, deliver: Deliver, status: int) -> None:
    """Every response tells what is left, before its body has come and even if it is an error."""
    heard: list[Reading] = []
    at: list[int] = []
    stage = build(server)

    def hear(readings: Sequence[Reading], answered: bool) -> None:
        heard.extend(readings)
        at.append(len(texts))

    texts: list[str] = []
    server.say(ANSWER if status == 200 else error(), status=status, content_type=JSON, headers=RATES)
    delivery = msgspec.structs.replace(deliver(emit=texts.append), hear=hear)

    await stage.handle(delivery)

    await stage.aclose()
    assert heard == [Reading("rpm", 7, 500, 59)]
    assert at == [0]
