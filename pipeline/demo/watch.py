"""Following a run: the provider's ledger, what waits, and the view that shows both."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from pipeline.demo.figures import percentile, used_ratio, waiting_spans, whole_windows
from pipeline.demo.story import Story
from pipeline.demo.tally import Side, Tally
from pipeline.demo.view import Snapshot, View
from pipeline.sandbox.control import Book, PremiumBook
from pipeline.sandbox.process import open_sandbox
from pipeline.sandbox.ready import Ready
from pipeline.sandbox.settings import SandboxSettings

_LOOK_S = 0.2
_GIVE_UP_S = 10.0


@asynccontextmanager
async def provider(story: Story) -> AsyncIterator[tuple[Ready, "Ledger"]]:
    """A fresh provider and edge server, and their books, for the length of the block."""
    settings = SandboxSettings(
        rpm=story.rpm,
        tpm=story.tpm,
        window_s=story.minute_s,
        enforcement="sliding",
        time_scale=story.time_scale,
        seed=story.seed,
    )
    async with open_sandbox(settings) as ready, aiohttp.ClientSession() as http:
        yield ready, Ledger(ready.control, http)


class Ledger:
    """Reads the provider's books. Its clock is the machine's monotonic one, as is ours."""

    def __init__(self, control: str, http: aiohttp.ClientSession) -> None:
        self._url = f"{control}/ledger"
        self._http = http

    async def book(self, from_s: float, to_s: float) -> Book:
        """The whole book, with what was admitted in this range."""
        timeout = aiohttp.ClientTimeout(total=_GIVE_UP_S)
        query = {"from": str(from_s), "to": str(to_s)}
        async with self._http.get(self._url, params=query, timeout=timeout) as response:
            return msgspec.json.decode(await response.read(), type=Book)


class Watch:
    """One run as it goes: keeps the tally's record of what waited, and the view up to date."""

    def __init__(self, story: Story, tally: Tally, ledger: Ledger, view: View, *, title: str, start_s: float) -> None:
        self._story = story
        self._tally = tally
        self._ledger = ledger
        self._view = view
        self._title = title
        self.start_s = start_s

    async def run(self, depth: Callable[[], Awaitable[int]]) -> None:
        """Look until cancelled; `depth` tells how many requests wait."""
        while True:
            waiting = await depth()
            now_s = time.monotonic()
            self._tally.waiting.append((now_s, waiting))
            book = await self._ledger.book(now_s - self._story.minute_s, now_s)
            self._view.show(self._snapshot(book, waiting, now_s))
            await asyncio.sleep(_LOOK_S)

    def _snapshot(self, book: Book, waiting: int, now_s: float) -> Snapshot:
        tally, story = self._tally, self._story
        used = book.premium.range.used
        return Snapshot(
            title=self._title,
            elapsed_s=now_s - self.start_s,
            requests_used=used.requests / story.rpm,
            tokens_used=used.tokens / story.tpm,
            provider_429=book.premium.rejected,
            in_flight=book.premium.open + book.edge.open,
            waiting=waiting,
            requests=tally.requests,
            answered=tally.answered,
            premium=tally.ways["premium"],
            edge=tally.ways["edge"],
            deferred=tally.ways["deferred"],
            ttft_p99_s=percentile(tally.ttfts(now_s), 0.99),
        )

    async def close(self, end_s: float) -> Side:
        """The run in figures, once nothing calls the provider any more."""
        story = self._story
        windows = whole_windows(self.start_s, story.minute_s, waiting_spans(self._tally.waiting))
        books = [await self._ledger.book(from_s, to_s) for from_s, to_s in windows]
        used = [(book.premium.range.used.requests, book.premium.range.used.tokens) for book in books]
        premium = (await self._ledger.book(self.start_s, end_s)).premium
        return msgspec.structs.replace(
            self._tally.side(end_s),
            provider_429=premium.rejected,
            provider_calls=premium.calls,
            used_ratio=used_ratio(used, rpm=story.rpm, tpm=story.tpm),
            windows=len(windows),
            minute_s=story.minute_s,
            seconds=end_s - self.start_s,
            per_second=self._per_second(premium),
        )

    def _per_second(self, premium: PremiumBook) -> list[tuple[int, int, int]]:
        zero = int(self.start_s)
        return [(second - zero, admitted, rejected) for second, admitted, rejected in premium.per_second]
