"""A sandbox in this event loop and real clients for it. Clocks run a thousand times faster than a provider."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import msgspec
import ollama
import pytest
from openai import AsyncOpenAI

from pipeline.sandbox.control import Book, CallPage
from pipeline.sandbox.ready import Ready
from pipeline.sandbox.server import serving
from pipeline.sandbox.settings import SandboxSettings


class Bench:
    """One running sandbox with a client of each kind; the openai client never repeats a call."""

    def __init__(self, settings: SandboxSettings, urls: Ready, http: aiohttp.ClientSession, key: str) -> None:
        self.settings = settings
        self.model = settings.edge_model
        self.urls = urls
        self.http = http
        self.openai = AsyncOpenAI(base_url=urls.premium, api_key=key, max_retries=0)
        self.ollama = ollama.AsyncClient(urls.edge)

    async def close(self) -> None:
        await self.openai.close()
        await self.ollama._client.aclose()

    async def ask(self, prompt: str = "Where is my parcel?", **more: Any) -> Any:
        return await self.openai.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": prompt}], **more
        )

    async def edge(self, prompt: str = "Where is my parcel?", **more: Any) -> Any:
        return await self.ollama.chat(self.model, [{"role": "user", "content": prompt}], **more)

    async def order(self, *faults: dict[str, Any]) -> None:
        async with self.http.post(f"{self.urls.control}/faults", json=faults) as response:
            assert response.status == 200, await response.text()

    async def change(self, **settings: Any) -> Any:
        async with self.http.post(f"{self.urls.control}/settings", json=settings) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def book(self, query: str = "") -> Book:
        async with self.http.get(f"{self.urls.control}/ledger{query}") as response:
            return msgspec.json.decode(await response.read(), type=Book)

    async def calls(self, since: int = 1) -> CallPage:
        async with self.http.get(f"{self.urls.control}/calls?since={since}") as response:
            return msgspec.json.decode(await response.read(), type=CallPage)

    async def until(self, condition: Callable[[Book, CallPage], bool]) -> None:
        """Return once the books satisfy `condition`; each look is a round trip, so the server gets its turn."""
        async with asyncio.timeout(10):
            while not condition(await self.book(), await self.calls()):
                pass


Open = Callable[..., Awaitable[Bench]]


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Opens sandboxes with the given settings; all end with the test."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())

        async def open_one(*, key: str = "any", **settings: Any) -> Bench:
            chosen = SandboxSettings(**{"time_scale": 1000.0, **settings})
            bench = Bench(chosen, await stack.enter_async_context(serving(chosen)), http, key)
            stack.push_async_callback(bench.close)
            return bench

        yield open_one


@pytest.fixture
async def bench(opened: Open) -> Bench:
    """A sandbox with limits that nobody reaches."""
    return await opened(rpm=10_000, tpm=10_000_000)
