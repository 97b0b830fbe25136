"""Calls to models are cancelled at every await: they end, the provider sees it, and the next call is answered."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import msgspec
import pytest

from pipeline.answer import Answer
from pipeline.config import Deployment, Edge
from pipeline.message import Request
from pipeline.sandbox.control import CallPage
from pipeline.sandbox.process import start_sandbox
from pipeline.sandbox.ready import Ready
from pipeline.sandbox.settings import SandboxSettings
from stages.providers.ollama_chat import OllamaChat
from stages.providers.openai_chat import OpenAIChat
from tests.cancellation.awaits import sweep
from tests.support import eventually

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("late", [False, True], ids=["before it comes", "as it comes"]),
]
KEY = "sk-sweep-0123456789abcdef"
BODY = {"messages": [{"role": "user", "content": "Where is my parcel?"}], "max_tokens": 40}
REQUEST = Request(id="r1", body=msgspec.Raw(msgspec.json.encode(BODY)), prompt_tokens=9, output_tokens=40)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Ready]:
    """Providers that answer within a tenth of a second, piece by piece."""
    with start_sandbox(SandboxSettings(time_scale=10.0, api_keys=(KEY,), rpm=1_000_000, tpm=1_000_000_000)) as ready:
        yield ready


def _open_calls(sandbox: Ready) -> int:
    with urllib.request.urlopen(f"{sandbox.control}/calls", timeout=5) as reply:
        page = msgspec.json.decode(reply.read(), type=CallPage)
    return sum(call.fate == "open" for call in page.calls)


@pytest.mark.parametrize("kind", ["first call", "later call"])
async def test_a_call_to_the_provider(sandbox: Ready, kind: str, late: bool) -> None:
    """Wherever it is cancelled, its connection is closed or free again, and a whole answer comes to the next."""
    chat = OpenAIChat(Deployment(base_url=sandbox.premium, api_key=KEY, rpm=1), KEY)

    async def later() -> Answer:
        return await chat.answer(REQUEST, lambda _text: None, lambda _readings, _answered: None)

    former: list[OpenAIChat] = []

    async def first() -> Answer:
        nonlocal chat
        former.append(chat)
        chat = OpenAIChat(Deployment(base_url=sandbox.premium, api_key=KEY, rpm=1), KEY)
        return await later()

    async def usable() -> None:
        for closed in former:
            await closed.aclose()
        former.clear()
        assert (await later()).finish_reason

    try:
        assert await sweep(first if kind == "first call" else later, usable, late=late) > 1
        await usable()
        await eventually(lambda: _open_calls(sandbox) == 0, why="the provider has calls that nobody waits for")
    finally:
        for one in (*former, chat):
            await one.aclose()


@pytest.mark.parametrize("kind", ["answer", "load"])
async def test_a_call_to_the_local_model(sandbox: Ready, kind: str, late: bool) -> None:
    """Wherever it is cancelled, its connection is closed or free again, and a whole answer comes to the next."""
    model = OllamaChat(Edge(base_url=sandbox.edge))

    async def answer() -> Answer:
        return await model.answer(REQUEST, lambda _text: None)

    async def usable() -> None:
        assert (await answer()).content

    try:
        await model.load()
        assert await sweep(answer if kind == "answer" else model.load, usable, late=late) > 0
        await eventually(lambda: _open_calls(sandbox) == 0, why="the edge has calls that nobody waits for")
    finally:
        await model.aclose()
