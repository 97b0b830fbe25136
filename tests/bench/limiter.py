"""Our limiter and its peers under the same load, in one run, in turn, against the same server.

Each subject is a process of its own (peers in their own environments), kept for the whole run and idle but for its
turn. Ours decides on two limits a call, requests and tokens; the peers have one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from tests.bench.meter import Meter, Target, median
from tests.bench.peers.load import Job
from tests.bench.venvs import NoEnvironment, python_of

CALLERS = (1, 16, 128)
PROCESSES = 12
GOALS = {"1": (8_000, 0.5), "128": (50_000, 4.0)}
GOAL_TIMES_BEST_PEER, GOAL_CONTENDED_P99_MS = 8, 5.0
# Short, so that whole windows can be watched.
_WINDOW_S = 2
_NEVER = 100_000_000  # no job of seconds gets there
_WORST_LIMIT = 200
_REFUSED_LIMIT = 10
# 12 callers in turn, each of them a process: what a fleet of workers under a few thousand RPM does.
_CONTENDED_PACE_S = 0.02
_REHEARSAL_S = 0.1
_REPO = Path(__file__).parents[2]


class Subject(NamedTuple):
    """A limiter in one of its ways of counting; `module` is its file in `peers`."""

    name: str
    module: str
    variant: str


OURS = (Subject("tokenweir", "ours", "reserve"), Subject("tokenweir", "ours", "reserve + settle"))
PEERS = (
    Subject("limits", "limits", "moving window"),
    Subject("limits", "limits", "fixed window"),
    Subject("limits", "limits", "sliding window counter"),
    Subject("throttled-py", "throttled", "token bucket"),
    Subject("throttled-py", "throttled", "GCRA"),
    Subject("pyrate-limiter", "pyrate", "sorted set"),
    Subject("pyrate-limiter", "pyrate", "token bucket"),
    Subject("litellm's script", "litellm", "fixed window"),
)


class Process:
    """A peer's process, which does one job after the other."""

    def __init__(self, python: Path, module: str) -> None:
        words = [os.fspath(python), "-m", f"tests.bench.peers.{module}"]
        self._process = subprocess.Popen(
            words, cwd=_REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def send(self, job: Job) -> None:
        """Begin a job."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(job._asdict()) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` says what it died of

    def answer(self) -> dict[str, Any]:
        """The figures of the job, or what it failed of."""
        assert self._process.stdout
        assert self._process.stderr
        line = self._process.stdout.readline()
        if not line:
            return {"failed": next(reversed(self._process.stderr.read().strip().splitlines()), "ended without a word")}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Let it end, and wait until it has."""
        self._process.communicate()


@contextmanager
def processes(say: Callable[[str], None]) -> Iterator[tuple[dict[str, Process], dict[str, str]]]:
    """A process for each module, and why there is none for the others."""
    found, missing = {}, {}
    with ExitStack() as ends:
        for module in dict.fromkeys(subject.module for subject in (*OURS, *PEERS)):
            try:
                python = Path(sys.executable) if module == "ours" else python_of(module, say=say)
            except NoEnvironment as error:
                missing[module] = str(error)
            else:
                found[module] = Process(python, module)
                ends.callback(found[module].close)
        yield found, missing


async def measure(
    target: Target, *, repeats: int, seconds: float, progress: Callable[[], None], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Every subject's figures, or why it has none."""
    figures: dict[Subject, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    meter = Meter(target.url)
    count = 0
    with processes(say) as (running, missing):
        for turn in range(repeats):
            for subject in (*OURS, *PEERS):
                for kind, shape in _shapes(seconds, last=turn == repeats - 1):
                    progress()
                    if subject.module in missing or _failed(figures[subject]):
                        continue
                    count += 1
                    job = Job(url=target.tcp_url, variant=subject.variant, key=f"bench-{count}", **shape)
                    await meter.begin()
                    running[subject.module].send(job)
                    answer = running[subject.module].answer()
                    cost = await meter.end()
                    if "failed" not in answer:
                        answer["server_us"] = cost.server_s / answer["decisions"] * 1e6
                    figures[subject][kind].append(answer)
    await meter.aclose()
    rows = []
    for subject in (*OURS, *PEERS):
        why = missing.get(subject.module) or _failed(figures[subject])
        row: dict[str, Any] = {"limiter": subject.name, "counts": subject.variant}
        rows.append(row | ({"failed": why} if why else _medians(figures[subject])))
    return rows


def rounds(repeats: int) -> int:
    """How often `measure` reports progress."""
    return len((*OURS, *PEERS)) * (repeats * len(_shapes(1, last=False)) + 1)


def _shapes(seconds: float, *, last: bool) -> list[tuple[str, dict[str, Any]]]:
    """The jobs of one turn; what takes whole windows only in the last one."""
    shapes: list[tuple[str, dict[str, Any]]] = [
        (str(callers), {"limit": _NEVER, "window_s": _WINDOW_S, "callers": callers, "seconds": seconds})
        for callers in CALLERS
    ]
    shapes.append(("refused", {"limit": _REFUSED_LIMIT, "window_s": _WINDOW_S, "callers": 16, "seconds": seconds}))
    if last:
        saturated_s = 2.5 * _WINDOW_S
        worst = {
            "limit": _WORST_LIMIT,
            "window_s": _WINDOW_S,
            "callers": 16,
            "seconds": saturated_s,
            "worst": True,
        }
        shapes.append(("worst", worst))
    return shapes


def _failed(figures: dict[str, list[dict[str, Any]]]) -> str | None:
    return next((answer["failed"] for some in figures.values() for answer in some if "failed" in answer), None)


def _medians(figures: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    return {
        kind: {name: round(median(answer[name] for answer in answers), 4) for name in answers[0]}
        for kind, answers in figures.items()
    }


async def contended(target: Target, *, seconds: float) -> list[dict[str, Any]]:
    """Acquire latency of ours with a dozen processes: each in its turn, and as fast as they can."""
    rows = []
    with ExitStack() as ends:
        running = [Process(Path(sys.executable), "ours") for _ in range(PROCESSES)]
        for one in running:
            ends.callback(one.close)
        rehearsal = Job(
            url=target.tcp_url,
            variant="reserve",
            key="rehearsal",
            limit=_NEVER,
            window_s=_WINDOW_S,
            callers=1,
            seconds=_REHEARSAL_S,
        )
        # Until all have started: a dozen interpreters that begin keep two cores busy for seconds.
        _together(running, [rehearsal] * PROCESSES)
        for name, pace_s in (("each 50 a second", _CONTENDED_PACE_S), ("as fast as they can", 0.0)):
            job = rehearsal._replace(
                key=f"contended-{pace_s}", seconds=seconds, pace_s=pace_s, start_at=time.time() + 1
            )
            # As one process has its callers begin: one after the other.
            starts = [job.start_at + pace_s * place / PROCESSES for place in range(PROCESSES)]
            answers = _together(running, [job._replace(start_at=start_at) for start_at in starts])
            if failed := next((answer["failed"] for answer in answers if "failed" in answer), None):
                return [{"load": name, "failed": failed}]
            rows.append(
                {
                    "load": name,
                    "decisions_per_s": round(sum(answer["decisions_per_s"] for answer in answers)),
                    "p50_ms": round(median(answer["p50_ms"] for answer in answers), 3),
                    "p99_ms": round(median(answer["p99_ms"] for answer in answers), 3),
                    "slowest_p99_ms": round(max(answer["p99_ms"] for answer in answers), 3),
                }
            )
    return rows


def _together(running: list[Process], jobs: list[Job]) -> list[dict[str, Any]]:
    """A job for each process, all at the same time; their answers."""
    for one, job in zip(running, jobs, strict=True):
        one.send(job)
    return [one.answer() for one in running]


def best_peer(rows: list[dict[str, Any]], callers: str = "128") -> float:
    """The most decisions a second of any peer; 0 where none could be measured."""
    names = {subject.name for subject in PEERS}
    return max(
        (row[callers]["decisions_per_s"] for row in rows if row["limiter"] in names and callers in row), default=0
    )


def tables(rows: list[dict[str, Any]], crowd: list[dict[str, Any]]) -> list[Table]:
    """The figures for people."""
    speed = Table(title="Limiters, one process: decisions/s, p50 / p99 ms by concurrent callers; server us a decision")
    speed.add_column("limiter")
    for callers in CALLERS:
        speed.add_column(f"{callers} callers" if callers > 1 else "1 caller", justify="right")
    for column in ("16, refused", "server us at 128", "worst window", "used"):
        speed.add_column(column, justify="right")
    for row in rows:
        name = f"{row['limiter']}, {row['counts']}"
        if "failed" in row:
            speed.add_row(f"{name}\nnot measured: {row['failed']}")
            continue
        kinds = [*map(str, CALLERS), "refused"]
        cells = [f"{row[k]['decisions_per_s']:,.0f}\n{row[k]['p50_ms']:.2f} / {row[k]['p99_ms']:.2f}" for k in kinds]
        worst = row["worst"]
        cells += [f"{row['128']['server_us']:.1f}", f"{worst['worst_share']:.2f}", f"{worst['used_share']:.2f}"]
        speed.add_row(name, *cells)
    crowded = Table(title=f"tokenweir, {PROCESSES} processes with one caller each")
    for column in ("load", "decisions/s", "p50 ms", "p99 ms", "p99 ms of the slowest process"):
        crowded.add_column(column, justify="left" if column == "load" else "right")
    for row in crowd:
        if "failed" in row:
            crowded.add_row(f"{row['load']}\nnot measured: {row['failed']}")
            continue
        figures = [f"{row[name]:.2f}" for name in ("p50_ms", "p99_ms", "slowest_p99_ms")]
        crowded.add_row(row["load"], f"{row['decisions_per_s']:,}", *figures)
    return [speed, crowded]
