"""The OpenAI side, seen through the official client."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from pipeline.sandbox.answers import Answer
from pipeline.sandbox.state import State
from pipeline.sandbox.tokens import prompt_tokens

if TYPE_CHECKING:
    from tests.sandbox.conftest import Bench, Open

pytestmark = pytest.mark.anyio
_PROMPT = "Where is my parcel?"


async def test_a_plain_call_is_answered_with_usage(bench: Bench) -> None:
    """The official client gets a completion whose text, length and usage are those fixed by the prompt."""
    reply = await bench.ask(_PROMPT, max_tokens=50)

    answer = Answer.to(_PROMPT, cap=50, seed=bench.settings.seed)
    assert reply.choices[0].message.content == answer.text
    assert reply.choices[0].finish_reason == answer.finish_reason
    assert reply.usage.prompt_tokens == prompt_tokens([_PROMPT])
    assert reply.usage.completion_tokens == answer.tokens
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + answer.tokens


async def test_a_stream_says_what_a_plain_call_says(bench: Bench) -> None:
    """Role, the words in at most eight chunks, a finish, usage without choices: together the same answer."""
    stream = await bench.ask(_PROMPT, max_tokens=50, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]

    *spoken, last = chunks
    deltas = [chunk.choices[0].delta for chunk in spoken]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == Answer.to(_PROMPT, cap=50, seed=1).text
    assert sum(bool(delta.content) for delta in deltas) == 8
    assert [chunk.choices[0].finish_reason for chunk in spoken[:-1]] == [None] * (len(spoken) - 1)
    assert spoken[-1].choices[0].finish_reason in ("stop", "length")
    assert (last.choices, last.usage.completion_tokens) == ([], Answer.to(_PROMPT, cap=50, seed=1).tokens)
    assert all(chunk.usage is None for chunk in spoken)


async def test_answers_take_the_time_drawn_for_them(opened: Open) -> None:
    """A caller waits for the first token and for the others, both divided by the time scale, and not much longer."""
    bench = await opened(time_scale=10.0)
    first_s, rest_s = State(bench.settings).premium_times(Answer.to(_PROMPT, cap=50, seed=1).tokens)

    began = time.monotonic()
    stream = await bench.ask(_PROMPT, max_tokens=50, stream=True)
    first = await anext(stream)
    first_after = time.monotonic() - began
    last = [chunk async for chunk in stream][-1]
    last_after = time.monotonic() - began

    assert first.choices[0].delta.role == "assistant"
    assert last.choices[0].finish_reason
    assert first_s <= first_after < first_s + 2
    assert first_s + rest_s - 0.001 <= last_after < first_s + rest_s + 2


async def test_usage_is_streamed_only_when_asked_for(bench: Bench) -> None:
    """Without include_usage every chunk has a choice and none has a usage."""
    chunks = [chunk async for chunk in await bench.ask(stream=True, max_tokens=5)]

    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


async def test_several_choices_are_charged_and_told_apart(bench: Bench) -> None:
    """n answers cost n caps, plain and streamed, and differ."""
    plain = await bench.ask(n=3, max_tokens=20)
    texts: dict[int, str] = {}
    async for chunk in await bench.ask(n=3, max_tokens=20, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")

    assert [choice.message.content for choice in plain.choices] == [texts[index] for index in range(3)]
    assert len(set(texts.values())) == 3
    assert [call.tokens for call in (await bench.calls()).calls] == [prompt_tokens([_PROMPT]) + 60] * 2


@pytest.mark.parametrize(
    ("caps", "cap"),
    [({"max_tokens": 30}, 30), ({"max_completion_tokens": 40}, 40), ({}, 512),
     ({"max_tokens": 30, "max_completion_tokens": 20}, 30)],
)  # fmt: skip
async def test_the_charge_is_prompt_and_larger_cap(bench: Bench, caps: dict[str, Any], cap: int) -> None:
    """Both cap fields may stand in a call: the larger counts; without any, 512."""
    await bench.ask(**caps)

    assert (await bench.book()).premium.total.tokens == prompt_tokens([_PROMPT]) + cap


async def test_headers_say_what_is_left(opened: Open) -> None:
    """Every answer carries OpenAI's six rate headers and a request id."""
    bench = await opened(rpm=10, tpm=1000, window_s=360)

    raw = await bench.openai.chat.completions.with_raw_response.create(
        model="gpt-4o", messages=[{"role": "user", "content": _PROMPT}], max_tokens=100
    )

    left = 1000 - 100 - prompt_tokens([_PROMPT])
    assert raw.headers["x-ratelimit-limit-requests"] == "10"
    assert raw.headers["x-ratelimit-remaining-requests"] == "9"
    assert raw.headers["x-ratelimit-limit-tokens"] == "1000"
    assert raw.headers["x-ratelimit-remaining-tokens"] == str(left)
    assert raw.headers["x-ratelimit-reset-requests"] == "6m0s"
    assert raw.headers["x-ratelimit-reset-tokens"] == "6m0s"
    assert raw.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(("limits", "short"), [({"rpm": 1}, "requests"), ({"tpm": 250}, "tokens")])
async def test_too_fast_is_a_rate_limit_error(opened: Open, limits: dict[str, int], short: str) -> None:
    """The 429 names its dimension, and says in text and in both headers when to come back."""
    bench = await opened(**{"rpm": 100, "tpm": 10_000, "window_s": 60, **limits})
    await bench.ask(max_tokens=200)

    with pytest.raises(openai.RateLimitError) as caught:
        await bench.ask(max_tokens=200)

    error = caught.value
    assert (error.type, error.code) == (short, "rate_limit_exceeded")
    assert "Rate limit reached for gpt-4o" in str(error)
    assert "Please try again in 59." in str(error)
    assert error.response.headers["retry-after"] == "60"
    assert 59_000 < int(error.response.headers["retry-after-ms"]) <= 60_000
    book = (await bench.book()).premium
    assert (book.calls, book.admitted, book.rejected, book.rejected_by) == (2, 1, 1, {next(iter(limits)): 1})


async def test_too_large_is_refused_for_good(opened: Open) -> None:
    """A call above the limit gets a 429 that says so, without a time to come back."""
    bench = await opened(rpm=10, tpm=100)

    with pytest.raises(openai.RateLimitError, match="Request too large for gpt-4o") as caught:
        await bench.ask(max_tokens=101)

    assert caught.value.type == "tokens"
    assert "retry-after" not in caught.value.response.headers
    assert (await bench.book()).premium.rejected_by["too_large"] == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"model":"m"}', b'{"model":"m","messages":[]}', b'{"model":"m","messages":"hi"}',
     b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":0}', b'{"model":"\xff"}'],
)  # fmt: skip
async def test_a_malformed_call_is_a_bad_request(bench: Bench, body: bytes) -> None:
    """It gets OpenAI's 400 and is charged nothing."""
    async with bench.http.post(f"{bench.urls.premium}/chat/completions", data=body) as response:
        error = (await response.json())["error"]

    assert (response.status, error["type"]) == (400, "invalid_request_error")
    assert (await bench.book()).premium.calls == 0


async def test_keys_are_checked_when_there_are_any(opened: Open) -> None:
    """A caller without one of the configured keys gets a 401."""
    stranger = await opened(api_keys=("right", "other"), key="wrong")
    friend = await opened(api_keys=("right", "other"), key="other")

    with pytest.raises(openai.AuthenticationError):
        await stranger.ask()
    with pytest.raises(openai.AuthenticationError):
        await stranger.openai.models.list()
    assert [model.id async for model in friend.openai.models.list()] == ["gpt-4o"]
    await friend.ask()


async def _attempt(bench: Bench, **more: Any) -> Any:
    reply = await bench.ask(max_tokens=40, **more)
    return [chunk async for chunk in reply] if more.get("stream") else reply


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [("status:500", openai.InternalServerError), ("status:404", openai.NotFoundError),
     ("status:429:insufficient_quota", openai.RateLimitError), ("reset", openai.APIConnectionError)],
)  # fmt: skip
async def test_ordered_errors_arrive(bench: Bench, kind: str, expected: type[Exception], stream: bool) -> None:
    """An ordered failure strikes once, is charged, isn't counted as a refusal, and the next call goes well."""
    await bench.order({"kind": kind})

    with pytest.raises((expected, httpx.RemoteProtocolError)) as caught:
        await _attempt(bench, stream=stream)
    await _attempt(bench, stream=stream)

    if "quota" in kind:
        assert isinstance(caught.value, openai.RateLimitError)
        assert caught.value.code == "insufficient_quota"
    book = (await bench.book()).premium
    assert (book.admitted, book.rejected, book.fates) == (2, 0, {"fault": 1, "answered": 1})


async def test_a_cut_stream_has_no_finish(bench: Bench) -> None:
    """It ends in the middle, quietly: only the missing finish_reason tells."""
    await bench.order({"kind": "cut"})

    chunks = await _attempt(bench, stream=True)

    assert any(chunk.choices[0].delta.content for chunk in chunks)
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks)


async def test_answers_that_are_none_come_with_status_200(bench: Bench) -> None:
    """Empty choices, an error object, a page of HTML: the client raises nothing for them, so the engine must look."""
    await bench.order({"kind": "empty_choices"}, {"kind": "error"}, {"kind": "html"}, {"kind": "empty_choices"})

    empty, error, page = [await _attempt(bench) for _ in range(3)]
    streamed = await _attempt(bench, stream=True)

    assert empty.choices == []
    assert error.choices is None
    assert "<html>" in page
    assert not any(chunk.choices for chunk in streamed)


async def test_a_failing_stream_says_error(bench: Bench) -> None:
    """An error event in the middle of a stream reaches the client as an error."""
    await bench.order({"kind": "error"})

    with pytest.raises(openai.APIError, match="error while answering"):
        await _attempt(bench, stream=True)


async def test_a_hanging_call_is_booked_as_struck(bench: Bench) -> None:
    """Nothing comes until the caller gives up; other prompts aren't held up."""
    await bench.order({"kind": "hang", "match": "parcel"})

    with pytest.raises(openai.APITimeoutError):
        await bench.ask("my parcel", timeout=0.05)
    await bench.ask("something else")

    assert (await bench.book()).premium.fates == {"fault": 1, "answered": 1}


async def test_slow_puts_off_the_first_token(bench: Bench) -> None:
    """A slow call is answered in full, later; a caller who doesn't wait for it is booked as gone."""
    await bench.order({"kind": "slow:30"}, {"kind": "slow:0.001"})

    with pytest.raises(openai.APITimeoutError):
        await bench.ask(timeout=0.05)
    await bench.ask()

    await bench.until(lambda book, _calls: book.premium.fates == {"gone": 1, "answered": 1})
