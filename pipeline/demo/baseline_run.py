"""The first run: the baseline's twelve workers against a fresh provider, followed through their events."""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from pipeline.demo.baseline import Event, Plan
from pipeline.demo.children import DemoFailed, end_children, last_words, start_child
from pipeline.demo.story import BATCH_TENANT, Story
from pipeline.demo.tally import Side, Tally
from pipeline.demo.view import View
from pipeline.demo.watch import Watch, provider

TITLE = "1 of 2: without tokenweir"
_GRACE_S = 3.0
_NEAR_S = 6.0


async def play_baseline(story: Story, view: View, near_end: asyncio.Event) -> Side:
    """The story with uncoordinated workers. It ends with the last provider minute: what is open then stays so.

    Args:
        near_end: is set a few seconds before the end.

    Raises:
        DemoFailed: the workers didn't start.
    """
    with TemporaryDirectory(prefix="tokenweir-demo-") as folder:
        said = Path(folder) / "baseline.log"
        async with provider(story) as (ready, ledger):
            child = await start_child("pipeline.demo.baseline", said=said, pipes=True)
            try:
                assert child.stdin
                assert child.stdout
                child.stdin.write(msgspec.json.encode(Plan(base_url=ready.premium, story=story)) + b"\n")
                begun = await child.stdout.readline()
                if not begun:
                    raise DemoFailed(f"the baseline's workers didn't start:\n{last_words(said)}")
                start_s = msgspec.json.decode(begun, type=Event).at_s
                followed = _Followed(story)
                watch = Watch(story, followed.tally, ledger, view, title=TITLE, start_s=start_s)
                async with asyncio.TaskGroup() as group:
                    looking = group.create_task(watch.run(followed.depth))
                    group.create_task(_tell(near_end, start_s + story.length_s - _NEAR_S))
                    await followed.read(child.stdout)
                    looking.cancel()
            finally:
                await end_children([child], grace_s=_GRACE_S)
            if time.monotonic() < start_s + story.length_s:
                raise DemoFailed(f"the baseline's workers ended too early:\n{last_words(said)}")
            return await watch.close(start_s + story.length_s)


async def _tell(near_end: asyncio.Event, moment_s: float) -> None:
    await asyncio.sleep(moment_s - time.monotonic())
    near_end.set()


class _Followed:
    """Turns the workers' events into a tally."""

    def __init__(self, story: Story) -> None:
        self.tally = Tally()
        self._to_come = story.batch_calls
        self._refused: set[str] = set()

    async def read(self, lines: asyncio.StreamReader) -> None:
        """Take in events until the workers have ended."""
        decoder = msgspec.json.Decoder(Event)
        async for line in lines:
            self._take(decoder.decode(line))

    async def depth(self) -> int:
        """How many requests wait for budget: refused and not yet admitted, and the rest of a started batch job."""
        batch_begun = self.tally.requests > self.tally.user_requests
        return len(self._refused) + (self._to_come if batch_begun else 0)

    def _take(self, event: Event) -> None:
        batch = event.tenant == BATCH_TENANT
        match event.kind:
            case "wish":
                self._to_come -= batch
                self.tally.wished(event.ask_id, event.at_s, batch=batch)
            case "refused":
                self._refused.add(event.ask_id)
            case "first":
                self._refused.discard(event.ask_id)
                self.tally.heard(event.ask_id, event.at_s)
            case "done":
                self.tally.ended(event.ask_id)
                self.tally.ways["premium"] += 1
            case "start":
                pass
