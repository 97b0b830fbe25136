"""The order of events: both runs one after the other, the closing table, and a clean end at Ctrl-C."""

import argparse
import asyncio
import signal
import sys
from contextlib import AsyncExitStack

from rich.console import Console

from pipeline.demo.baseline_run import play_baseline
from pipeline.demo.chart import chart
from pipeline.demo.children import DemoFailed
from pipeline.demo.installation import Installation, installation
from pipeline.demo.pipeline_run import play_pipeline
from pipeline.demo.report import as_json, closing, promises
from pipeline.demo.story import Story
from pipeline.demo.tally import Side
from pipeline.demo.view import View, scale_note
from pipeline.sandbox.process import SandboxFailed
from tokenweir.errors import TokenweirError

_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class _Interrupted(Exception):
    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.code = _CODES[number]


def play(args: argparse.Namespace) -> int:
    """What `pipeline.demo.run` promises."""
    story = Story(minute_s=args.minute_s, minutes=args.minutes, seed=args.seed)
    console = Console(stderr=args.json)
    try:
        with View(console, story) as view:
            view.say(
                f"{story.users} users and a batch job of {story.batch_calls} calls, {story.workers} workers,"
                f" one provider account:\n{story.rpm} requests and {story.tpm:,} tokens a minute.\n{scale_note(story)}"
            )
            baseline, side = asyncio.run(_until_signal(story, view))
    except _Interrupted as interrupted:
        return interrupted.code
    except (DemoFailed, SandboxFailed, TokenweirError, ExceptionGroup) as error:
        _complain(console, _reason(error))
        return 1
    console.print(closing(baseline, side, story))
    if args.plot:
        args.plot.write_text(chart(baseline, side, story))
    broken = [promise for promise in promises(baseline, side) if not promise.kept]
    for promise in broken:
        _complain(console, f"broken promise: {promise.text}: {promise.seen}")
    if args.json:
        sys.stdout.write(as_json(baseline, side).decode() + "\n")
    return 1 if broken else 0


async def _until_signal(story: Story, view: View) -> tuple[Side, Side]:
    """Both runs. The first signal ends them in order, children included; further ones change nothing."""
    asked: list[signal.Signals] = []
    playing = asyncio.create_task(_play_both(story, view))

    def on_signal(number: signal.Signals) -> None:
        if not asked:
            playing.cancel()
        asked.append(number)

    for number in _CODES:
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    await asyncio.wait([playing])
    if asked:
        raise _Interrupted(asked[0])
    return playing.result()


async def _play_both(story: Story, view: View) -> tuple[Side, Side]:
    """One after the other; the second one's installation comes up in the last seconds of the first run.

    It takes two cores four to eight seconds. By then nothing is left in the first run that a few milliseconds could
    change: its 429s are the provider's count, and its first tokens come seconds late.
    """
    near_end = asyncio.Event()

    async def install() -> Installation:
        await near_end.wait()
        return await stack.enter_async_context(installation(story))

    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as group:
            installing = group.create_task(install())
            baseline = await play_baseline(story, view, near_end)
            view.say("Starting Redis and the workers of the second run.")
        return baseline, await play_pipeline(story, view, installing.result())


def _reason(error: Exception) -> str:
    """The first thing that went wrong, in words."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _complain(console: Console, text: str) -> None:
    console.print(f"demo: {text}", style="bold red", highlight=False, markup=False, soft_wrap=True)
