"""`python -m tests.chaos.soak`: continuous load under seeded random faults of all kinds, and what is left afterwards.

At the end everything drains: one result an id, no stream with anything in it, memory and connections as before.
The report is JSON on the last line, with a summary for people and all that was done to it before; exit code 1 if a
promise was broken. The same seed does the same again.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.chaos.ground import Ground, open_ground
from tests.chaos.health import Health, differences, rest
from tests.chaos.load import draft
from tests.chaos.phases import Moment, Undo, heal, timeline
from tests.chaos.verdict import judge
from tests.support import KINDS

# A status must outlive every outage and every wait in the backlog: it is what a result that comes late is held against.
LEASE_S, STATUS_TTL_S = 2.0, 60
_GROUPS, _WORKERS = 3, 2
_WARM_UP = 300
# Of a window of 6 s; and what producers add, a second.
_LIMITS = {"rpm": 1200, "tpm": 120_000}
_RATE, _MOST_ON_THE_WAY = 60.0, 400
_DRAIN_S = 120.0
# In these logs it would be a fault of ours.
_NEVER = ("Traceback", '"stage_failed"', '"worker_failed"')


class Report(msgspec.Struct, kw_only=True):
    """What came of it; `broken` names the promises that weren't kept."""

    server: str
    seed: int
    minutes: float
    requests: int
    statuses: dict[str, int]
    lost: int
    duplicates: int
    ungranted_calls: int
    rejected: int
    repeated_ratio: float
    unexplained: int
    stuck: dict[str, int]
    log_lines_that_never_should_be: int
    before: Health
    after: Health
    broken: list[str]
    done: dict[str, int]
    timeline: list[str]


def play(kind: str, *, minutes: float, seed: int, progress: Progress) -> Report:
    """The report of one soak."""
    provider = {**_LIMITS, "seed": seed, "ttft_mean_s": 2.0, "ttft_p99_s": 4.0, "tokens_per_second": 200.0}
    call = {**_LIMITS, "connect_s": 1.0, "first_byte_s": 3.0, "between_chunks_s": 3.0}
    with open_ground(
        kind, provider=provider, call=call, lease_s=LEASE_S, status_ttl_s=STATUS_TTL_S, responses_kept=5000
    ) as ground:
        ground.run(groups=_GROUPS, workers=_WORKERS)
        draw = random.Random(seed)
        ground.add([draft(index, draw) for index in range(_WARM_UP)])
        _drain(ground, _DRAIN_S)
        before = rest(ground.rig, workers=_GROUPS * _WORKERS, expiring=8)
        moments = timeline(seed, minutes * 60)
        _soak(ground, moments, minutes * 60, draw, progress)
        stuck = _drain(ground, _DRAIN_S)
        after = rest(ground.rig, workers=_GROUPS * _WORKERS, expiring=before.expiring, base=before)
        return _report(ground, moments, before, after, stuck, minutes=minutes, seed=seed)


def _soak(ground: Ground, moments: list[Moment], seconds: float, draw: random.Random, progress: Progress) -> None:
    """Add requests without a pause, and do to the ground what the timeline says."""
    bar = progress.add_task(f"soak on {ground.server}", total=seconds)
    began, added, coming, open_ends = time.monotonic(), 0, list(moments), list[tuple[float, Undo]]()
    while (now_s := time.monotonic() - began) < seconds or open_ends:
        for end in [end for end in open_ends if end[0] <= now_s]:
            open_ends.remove(end)
            end[1]()
        if coming and coming[0].at_s <= now_s < seconds:
            moment = coming.pop(0)
            # Never longer than planned, but as late as the machine is.
            if undo := moment.phase.begin(ground, random.Random(moment.seed)):
                open_ends.append((time.monotonic() - began + moment.until_s - moment.at_s, undo))
        due = min(round(now_s * _RATE) - added, _MOST_ON_THE_WAY - (len(ground.sent) - len(ground.results)))
        if due > 0 and now_s < seconds:
            ground.add([draft(_WARM_UP + added + index, draw) for index in range(due)])
            added += due
        ground.read()
        if len(ground.calls) < ground.rig.book().premium.calls - 20_000:
            ground.read_books()
        progress.update(bar, completed=min(now_s, seconds), description=f"soak: {len(ground.results)} results")


def _drain(ground: Ground, timeout_s: float) -> dict[str, int]:
    """Whole again, all work ends; what is stuck."""
    ground.proxy.mend()
    heal(ground)
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        ground.read()
        if not ground.rig.lengths() and all(id_ in ground.results for id_ in ground.sent):
            break
    return ground.rig.lengths()


def _report(
    ground: Ground, moments: list[Moment], before: Health, after: Health, stuck: dict[str, int], **about: float
) -> Report:
    verdict = judge(ground, seconds=0, faulty=True)
    lines = [line for run in ground.runs for line in run.text.splitlines() if any(word in line for word in _NEVER)]
    counts = {name: getattr(verdict, name) for name in ("lost", "duplicates", "ungranted_calls", "rejected")}
    counts["unexplained"] = verdict.unexplained
    broken = [f"{name}: {count}" for name, count in counts.items() if count]
    broken += [f"stuck: {name} {count}" for name, count in stuck.items()]
    broken += [f"{name}: {text}" for name, text in differences(before, after).items()]
    broken += [f"log: {line[:300]}" for line in lines[:3]]
    statuses = Counter(result.status + (f" {result.code}" if result.code else "") for result in ground.failures)
    statuses["ok"] = sum(ground.results.values()) - len(ground.failures)
    return Report(
        server=ground.server,
        seed=int(about["seed"]),
        minutes=about["minutes"],
        requests=len(ground.sent),
        statuses=dict(statuses),
        repeated_ratio=verdict.repeated_ratio,
        stuck=stuck,
        log_lines_that_never_should_be=len(lines),
        before=before,
        after=after,
        broken=broken + verdict.stories * bool(verdict.unexplained or verdict.duplicates),
        done=dict(Counter(blow.what for blow in ground.blows)),
        timeline=[f"{moment.at_s:.1f}-{moment.until_s:.1f} {moment.phase.name}" for moment in moments],
        **counts,
    )


def summary(report: Report) -> Table:
    """For people."""
    shown = Table(title=f"Soak of {report.minutes:g} min on {report.server}, seed {report.seed}", show_header=False)
    rows = {
        "requests": f"{report.requests:,}: " + ", ".join(f"{name} {count}" for name, count in report.statuses.items()),
        "lost, twice, without a grant, 429": f"{report.lost}, {report.duplicates}, {report.ungranted_calls}, "
        f"{report.rejected}",
        "calls made again": f"{report.repeated_ratio:.1%} of requests, {report.unexplained} of them without a reason",
        "Redis memory": f"{report.before.redis_bytes / 1e6:.2f} -> {report.after.redis_bytes / 1e6:.2f} MB",
        "largest worker": f"{report.before.worker_kb / 1e3:.0f} -> {report.after.worker_kb / 1e3:.0f} MB",
        "connections": f"{report.before.connections} -> {report.after.connections}",
        "consumers": f"{report.before.consumers} -> {report.after.consumers}",
        "done to it": ", ".join(f"{name} {count}" for name, count in sorted(report.done.items())),
        "broken": "\n".join(report.broken) or "nothing",
    }
    for name, text in rows.items():
        shown.add_row(name, text)
    return shown


def main() -> int:
    """Soak, and report."""
    parser = argparse.ArgumentParser(prog="make soak ARGS=...", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1, help="of the load, and of what is done to it when")
    parser.add_argument("--server", choices=KINDS, default="valkey")
    args = parser.parse_args()
    people = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
        TimeElapsedColumn(),
        console=people,
    ) as progress:
        report = play(args.server, minutes=args.minutes, seed=args.seed, progress=progress)
    people.print(summary(report))
    print(msgspec.json.encode(report).decode())
    return int(bool(report.broken))


if __name__ == "__main__":
    raise SystemExit(main())
