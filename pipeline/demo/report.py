"""What the demo says in the end: a table of both runs, the promises, and one line for machines. Pure."""

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.demo.story import Story
from pipeline.demo.tally import Side

LEAST_USED = 0.9
_WIDTH = 80
_NOT_MEASURED = "-"
_NOTES = (
    "First token: from the user's wish to the first word, with all waits and repeats.",
    "Deferred: waited in the backlog until the budget had room. At once: all others.",
    "Our wait: from the wish to the start of the model call, of users' requests.",
    "Budget used: the larger of requests and tokens, by the provider's own ledger,",
    "over whole provider minutes from the second on in which work was waiting.",
)


class Promise(msgspec.Struct, frozen=True):
    """One thing that the demo proves, or doesn't; `seen` is what was measured."""

    text: str
    kept: bool
    seen: str


def promises(baseline: Side, side: Side) -> list[Promise]:
    """What must hold for exit code 0."""
    return [
        Promise(
            "the provider never said 429",
            side.provider_429 == 0,
            f"{side.provider_429:,} of {side.provider_calls:,} calls",
        ),
        Promise("no request was lost", side.lost == 0, f"{side.lost:,} of {side.requests:,}"),
        Promise("no request was answered twice", side.duplicates == 0, f"{side.duplicates:,} of {side.requests:,}"),
        Promise(
            f"waiting work uses {LEAST_USED:.0%} of the budget or more",
            side.used_ratio >= LEAST_USED,
            f"{side.used_ratio:.1%} in {side.windows} whole provider minutes",
        ),
        Promise(
            "the same story without tokenweir gets 429s",
            baseline.provider_429 > 0,
            f"{baseline.provider_429:,} of {baseline.provider_calls:,} calls",
        ),
    ]


def closing(baseline: Side, side: Side, story: Story) -> RenderableType:
    """Both runs side by side, and the promises, in 80 columns."""
    table = Table(width=_WIDTH, title="Seconds of the demo (at real scale)", title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("12 workers, backoff", justify="right")
    table.add_column("with tokenweir", justify="right", style="bold")
    for name, without, with_ in _rows(baseline, side, story):
        table.add_row(name, without, with_)
    lines = [Text(note, style="dim") for note in _NOTES]
    verdicts = []
    for promise in promises(baseline, side):
        mark = ("\u2713 ", "bold green") if promise.kept else ("\u2717 ", "bold red")
        verdicts.append(Text.assemble(mark, f"{promise.text}: {promise.seen}"))
    return Group(Text(), table, *lines, Text(), *verdicts)


def _rows(baseline: Side, side: Side, story: Story) -> list[tuple[str, str, str]]:
    def time(value_s: float) -> str:
        return f"{value_s:.3f} s ({value_s * story.time_scale:.2f} s)"

    def share(part: int) -> str:
        return f"{part:,} ({part / max(1, side.answered):.0%})"

    rows = [
        ("calls at the provider", f"{baseline.provider_calls:,}", f"{side.provider_calls:,}"),
        ("  rejected with 429", f"{baseline.provider_429:,}", f"{side.provider_429:,}"),
        ("requests", f"{baseline.requests:,}", f"{side.requests:,}"),
        ("  answered", f"{baseline.answered:,}", f"{side.answered:,}"),
        ("  without a result at the end", f"{baseline.lost:,}", f"{side.lost:,}"),
        ("  answered twice", f"{baseline.duplicates:,}", f"{side.duplicates:,}"),
        ("premium, at once", _NOT_MEASURED, share(side.premium)),
        ("edge, at once", _NOT_MEASURED, share(side.edge)),
        ("deferred, then answered", _NOT_MEASURED, share(side.deferred)),
        ("users: premium / edge / deferred", _NOT_MEASURED, _users_ways(side)),
        ("users' first token p50", time(baseline.ttft_p50_s), time(side.ttft_p50_s)),
        ("users' first token p99", time(baseline.ttft_p99_s), time(side.ttft_p99_s)),
        ("  at once p99", _NOT_MEASURED, time(side.ttft_now_p99_s)),
        ("our wait, at once p50", _NOT_MEASURED, time(side.added_wait_p50_s)),
        ("our wait, at once p99", _NOT_MEASURED, time(side.added_wait_p99_s)),
        ("budget used", f"{baseline.used_ratio:.1%}", f"{side.used_ratio:.1%}"),
    ]
    if side.errors:
        rows.insert(5, ("  ended with an error", _NOT_MEASURED, f"{side.errors:,}"))
    return rows


def _users_ways(side: Side) -> str:
    at_once = side.user_requests - side.user_edge - side.user_deferred
    shares = (part / max(1, side.user_requests) for part in (at_once, side.user_edge, side.user_deferred))
    return " / ".join(f"{share:.0%}" for share in shares)


def as_json(baseline: Side, side: Side) -> bytes:
    """One JSON object: the run with tokenweir, and the other under `baseline`. Times in seconds of the demo."""
    return msgspec.json.encode({**_plain(side), "baseline": _plain(baseline)})


def _plain(side: Side) -> dict[str, object]:
    plain: dict[str, object] = msgspec.to_builtins(side)
    del plain["per_second"]
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in plain.items()}
