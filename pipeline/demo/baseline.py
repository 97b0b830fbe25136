"""`python -m pipeline.demo.baseline`: twelve workers as they were before, each for itself, on the plain openai client.

One process imports the client, which takes most of a second, and forks the workers. Each has its share of the users
and one caller of the batch job; after a 429 it waits 1, 2, 4, 8 s (+-20 %, divided by the time scale) and knows
nothing of the others. The plan comes as a line of JSON on stdin, events go as lines of JSON to stdout. The end of
stdin ends everything, so nothing outlives a demo that was killed.
"""

import asyncio
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Literal, NoReturn

import msgspec
from openai import APIError, AsyncOpenAI, RateLimitError

from pipeline.demo.story import Ask, Story, batch, wishes

MODEL = "gpt-4o"
_FORK_S = 0.7  # for twelve forks and as many clients; who is late begins late, and loses nothing
_LOOK_S = 0.1
_LONGEST_BACKOFF = 3  # doublings: 1, 2, 4, 8 s

Kind = Literal["start", "wish", "refused", "first", "done"]


class Plan(msgspec.Struct, frozen=True):
    """What to play against which provider."""

    base_url: str
    story: Story


class Event(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened to a request; `start` is the moment from which the story counts."""

    kind: Kind
    at_s: float
    ask_id: str = ""
    tenant: str = ""


Say = Callable[[Kind, Ask], None]


def backoff_s(refusals: int, story: Story, random: Random) -> float:
    """The pause after so many refusals of one request."""
    return 2.0 ** min(refusals - 1, _LONGEST_BACKOFF) * random.uniform(0.8, 1.2) / story.time_scale


def main() -> int:
    """Fork the workers and stay until they have ended, or until nobody listens any more."""
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=Plan)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the demo, which then ends us
    start_s = time.monotonic() + _FORK_S
    _write(Event("start", start_s))
    workers = {_fork(plan, number, start_s) for number in range(plan.story.workers)}
    signal.signal(signal.SIGTERM, _leave)
    try:
        while workers:
            if select.select([sys.stdin], [], [], _LOOK_S)[0]:
                break  # nothing more is ever said there, so this is its end
            while workers and (ended := os.waitpid(-1, os.WNOHANG)[0]):
                workers.discard(ended)
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
    return 0


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _fork(plan: Plan, number: int, start_s: float) -> int:
    worker = os.fork()
    if worker:
        return worker
    code = 1
    try:
        asyncio.run(_work(plan, number, start_s))
        code = 0
    except BrokenPipeError:
        pass  # the demo has gone
    finally:
        os._exit(code)  # nothing of the parent's may run twice


async def _work(plan: Plan, number: int, start_s: float) -> None:
    """One worker's share of the story; what is open at its end is given up."""
    story = plan.story
    client = AsyncOpenAI(base_url=plan.base_url, api_key="sandbox", max_retries=0, timeout=60)
    random = Random(f"{story.seed} backoff {number}")
    end_s = start_s + story.length_s

    def say(kind: Kind, ask: Ask) -> None:
        _write(Event(kind, time.monotonic(), ask.id, ask.tenant))

    async def user(which: int) -> None:
        await _until(start_s)
        for wish in wishes(story, which):
            await asyncio.sleep(wish.think_s)
            await _call(client, wish.ask, story, say, random)

    async def caller() -> None:
        await _until(start_s + story.batch_at_s)
        for ask in batch(story)[number :: story.workers]:
            await _call(client, ask, story, say, random)

    try:
        async with asyncio.timeout(end_s - time.monotonic()), asyncio.TaskGroup() as group:
            group.create_task(caller())
            for which in range(number, story.users, story.workers):
                group.create_task(user(which))
    except TimeoutError:
        pass  # the story is over


async def _call(client: AsyncOpenAI, ask: Ask, story: Story, say: Say, random: Random) -> None:
    """Repeat one request until it's answered."""
    say("wish", ask)
    refusals, heard = 0, False
    while True:
        try:
            stream = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": ask.prompt}], max_tokens=ask.cap, stream=True
            )
            async for chunk in stream:
                if not heard and chunk.choices and chunk.choices[0].delta.content:
                    heard = True
                    say("first", ask)
        except RateLimitError:
            say("refused", ask)
        except APIError:
            pass  # a broken connection is repeated like a refusal
        else:
            say("done", ask)
            return
        refusals += 1
        await asyncio.sleep(backoff_s(refusals, story, random))


async def _until(moment_s: float) -> None:
    await asyncio.sleep(moment_s - time.monotonic())


def _write(event: Event) -> None:
    # One write below PIPE_BUF, so lines of different workers don't mix.
    os.write(sys.stdout.fileno(), msgspec.json.encode(event) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
