"""Traffic from a file: what really came, or is expected to, one JSON object a line. Read line by line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from pipeline.plan.asked import CLASSES, Asked
from tokenweir.errors import ConfigError

_Count = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]


class _Line(msgspec.Struct, frozen=True):
    """One request: see docs/plan.md. What else a log holds is ignored."""

    at: float | str
    prompt_tokens: _Count
    output_tokens: _Count
    used_tokens: _Count | None = None
    priority: Literal["interactive", "standard", "batch"] = msgspec.field(default="interactive", name="class")
    task: str = ""
    simple: bool | None = None
    tenant: str = "default"


class Length(msgspec.Struct, frozen=True):
    """How many requests a file holds, and how long they take to come."""

    requests: int
    seconds: float


class Trace:
    """The requests of a file, the first at time 0.

    Args:
        simple: tasks that the edge may answer.
    """

    def __init__(self, path: Path, simple: Set[str]) -> None:
        self._path, self._simple = path, simple

    def arrivals(self) -> Iterator[Asked]:
        """Every request, in order.

        Raises:
            ConfigError: the line that can't be read, by its number.
        """
        first: float | None = None
        last = -math.inf
        for number, line in self._lines():
            at_s = self._seconds(number, line.at)
            first = at_s if first is None else first
            if at_s < last:
                raise self._bad(number, f"`at` goes back by {last - at_s:g} s; sort the lines by it")
            last = at_s
            used = line.output_tokens if line.used_tokens is None else line.used_tokens
            yield Asked(
                at_us=round((at_s - first) * 1e6),
                prompt=line.prompt_tokens,
                output=line.output_tokens,
                used=used,
                rank=CLASSES.index(line.priority),
                tenant=line.tenant,
                simple=line.task in self._simple if line.simple is None else line.simple,
            )

    def granted(self, asked: Asked, now: int) -> Sequence[Asked]:
        return ()

    def answered(self, asked: Asked, now: int) -> Sequence[Asked]:
        return ()

    def length(self) -> Length:
        """Read the whole file once: a bad line is found before anything is played."""
        requests, last = 0, 0
        for asked in self.arrivals():
            requests, last = requests + 1, asked.at_us
        if not requests:
            raise ConfigError(f"{self._path}: no request in it; one JSON object a line is expected")
        return Length(requests, last / 1e6)

    def _lines(self) -> Iterator[tuple[int, _Line]]:
        decoder = msgspec.json.Decoder(_Line)
        try:
            with self._path.open("rb") as file:
                for number, text in enumerate(file, 1):
                    if not text.strip():
                        continue
                    try:
                        yield number, decoder.decode(text)
                    except (msgspec.DecodeError, UnicodeDecodeError) as error:
                        raise self._bad(number, str(error)) from error
        except OSError as error:
            raise ConfigError(f"can't read {self._path}: {error.strerror}") from error

    def _seconds(self, number: int, at: float | str) -> float:
        if isinstance(at, str):
            try:
                at = datetime.fromisoformat(at).timestamp()
            except ValueError as error:
                raise self._bad(
                    number, f"`at` {at!r} is neither seconds nor a time such as 2026-07-01T09:30:00Z"
                ) from error
        if not math.isfinite(at):
            raise self._bad(number, f"`at` {at} is no time")
        return float(at)

    def _bad(self, number: int, reason: str) -> ConfigError:
        return ConfigError(f"{self._path} line {number}: {reason}")
