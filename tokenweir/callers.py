"""Who waits for budget in this process, and in which order. Pure; how they are asked for is in `tokenweir.desk`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from tokenweir.errors import RequestError
from tokenweir.keys import CLASSES

NOBODY: Final = len(CLASSES)  # below all ranks


class Caller:
    """One call to be made. `granted` becomes true, or an error, unless the caller gives up."""

    __slots__ = ("asked_at", "charged_at_us", "deadline", "granted", "number", "output", "place", "prompt", "rank")

    def __init__(
        self, number: int, rank: int, prompt: int, output: int, deadline: float, granted: asyncio.Future[bool]
    ) -> None:
        self.number = number
        self.rank = rank
        self.prompt = prompt
        self.output = output
        self.deadline = deadline  # monotonic; after it a refusal is final
        self.granted = granted
        self.asked_at = 0.0  # monotonic: a charge of this question is younger
        self.place = -1  # of the deployment that is charged; -1 = none, or no longer
        self.charged_at_us = 0  # on Redis's clock

    @property
    def waits(self) -> bool:
        return not self.granted.done()

    def question(self) -> tuple[int, ...]:
        """What the script is asked."""
        return self.number, self.rank, self.prompt, self.output

    def ending(self, how: int, first: int, second: int) -> tuple[int, ...]:
        """What the script is told at the end."""
        return self.number, self.place + 1, self.charged_at_us, self.prompt, self.output, how, first, second

    def too_large(self) -> RequestError:
        tokens = self.prompt + self.output
        return RequestError(f"{tokens} tokens are more than any deployment may ever grant", code="too_large_for_limit")


class Line:
    """Callers by rank, then as they came."""

    def __init__(self) -> None:
        self._by_rank: tuple[deque[Caller], ...] = tuple(deque() for _ in CLASSES)

    def __iter__(self) -> Iterator[Caller]:
        return (caller for queue in self._by_rank for caller in queue)

    def add(self, caller: Caller, *, first: bool = False) -> None:
        """To the end of its class, or to the front of it."""
        if first:
            self._by_rank[caller.rank].appendleft(caller)
        else:
            self._by_rank[caller.rank].append(caller)

    def put_back(self, callers: Sequence[Caller]) -> None:
        """To where they were taken from."""
        for caller in reversed(callers):
            self._by_rank[caller.rank].appendleft(caller)

    def take(self, most: int, *, above: int) -> list[Caller]:
        """The first ones that still wait; none when the first of them isn't of a rank above `above`."""
        taken: list[Caller] = []
        for rank, queue in enumerate(self._by_rank):
            if rank >= above and not taken:
                break
            while queue and len(taken) < most:
                caller = queue.popleft()
                if not caller.granted.done():
                    taken.append(caller)
        return taken
