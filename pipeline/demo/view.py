"""What is seen while the demo plays: one panel that stays in 80 columns, or a line a minute where nobody looks."""

from types import TracebackType
from typing import Self

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipeline.demo.story import Story

_WIDTH = 80
_FULL = 0.9  # of the budget: used well, and near the limit


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a run.

    Attributes:
        requests_used, tokens_used: share of the limits admitted in the provider minute that ends now.
        in_flight: calls at a model. waiting: requests that wait for budget.
        ttft_p99_s: of the users so far, in seconds of the demo.
    """

    title: str
    elapsed_s: float
    requests_used: float
    tokens_used: float
    provider_429: int
    in_flight: int
    waiting: int
    requests: int
    answered: int
    premium: int
    edge: int
    deferred: int
    ttft_p99_s: float


class View:
    """Shows snapshots: in place on a terminal, as plain lines elsewhere. Use it as a context manager."""

    def __init__(self, console: Console, story: Story) -> None:
        self._console = console
        self._story = story
        self._live: Live | None = None
        self._said = ("", -1)  # the last run and provider minute that had their line

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            # Refreshed by hand: a thread that redraws would take time from two busy cores.
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, highlight=False)

    def show(self, snapshot: Snapshot) -> None:
        """Bring the picture up to date."""
        if self._live:
            self._live.update(panel(snapshot, self._story), refresh=True)
            return
        step = (snapshot.title, int(snapshot.elapsed_s // self._story.minute_s))
        if step != self._said and snapshot.elapsed_s >= 0:
            self._said = step
            self._console.print(line(snapshot, self._story), highlight=False, soft_wrap=True)


def scale_note(story: Story) -> str:
    """What the viewer must know to read the figures."""
    return f"A provider minute lasts {story.minute_s:g} s here; latencies and pauses are divided alike."


def line(snapshot: Snapshot, story: Story) -> str:
    """A snapshot in one line."""
    return (
        f"{snapshot.title}  minute {max(0.0, snapshot.elapsed_s) / story.minute_s:.1f} of {story.minutes}"
        f"  budget {max(snapshot.requests_used, snapshot.tokens_used):.0%}  429s {snapshot.provider_429}"
        f"  answered {snapshot.answered}/{snapshot.requests}  waiting {snapshot.waiting}"
        f"  first token p99 {snapshot.ttft_p99_s:.2f} s"
    )


def panel(snapshot: Snapshot, story: Story) -> RenderableType:
    """A snapshot as a picture."""
    left_s = max(0.0, story.length_s - snapshot.elapsed_s)
    ending = "finishing what is open" if left_s == 0 else f"{left_s:.0f} s left"
    bars = Table.grid(padding=(0, 1))
    for name, share, text in (
        ("requests", snapshot.requests_used, f"{snapshot.requests_used:.0%} of {story.rpm:,}"),
        ("tokens", snapshot.tokens_used, f"{snapshot.tokens_used:.0%} of {story.tpm:,}"),
        ("time", min(1.0, max(0.0, snapshot.elapsed_s) / story.length_s), ending),
    ):
        style = "cyan" if name == "time" else "green" if share < _FULL else "yellow"
        bar = ProgressBar(total=1.0, completed=min(1.0, share), width=38, complete_style=style, finished_style=style)
        bars.add_row(Text(name, style="dim"), bar, Text(text))
    body = Group(
        Text(f"{scale_note(story)}\n", style="dim"),
        Text("Budget used in the provider minute that ends now"),
        bars,
        Text(),
        _counters(snapshot, story),
    )
    return Panel(body, title=snapshot.title, title_align="left", width=_WIDTH)


def _counters(snapshot: Snapshot, story: Story) -> Table:
    p99_s = snapshot.ttft_p99_s
    counters = Table.grid(padding=(0, 1), expand=True)
    for _ in range(3):
        counters.add_column(style="dim", justify="right")
        counters.add_column(justify="left")
    refused = Text(f"{snapshot.provider_429:,}", style="bold red" if snapshot.provider_429 else "bold green")
    counters.add_row("429s", refused, "in flight", f"{snapshot.in_flight}", "waiting", f"{snapshot.waiting}")
    counters.add_row(
        "premium", f"{snapshot.premium}", "edge", f"{snapshot.edge}", "deferred, then answered", f"{snapshot.deferred}"
    )
    counters.add_row(
        "requests",
        f"{snapshot.requests}",
        "answered",
        f"{snapshot.answered}",
        "first token p99",
        f"{p99_s:.2f} s = {p99_s * story.time_scale:.1f} s real",
    )
    return counters
