"""Requests of every kind, and the two sorts of producers: those that XADD, and those that use the client."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tokenweir import Client, StoreUnavailable
from tokenweir.draft import Draft
from tokenweir.wire import Result

KINDS = ("simple", "complex", "batch", "streamed")
# Nothing expires in a run that goes well.
_MAX_WAIT_S = 3600.0
_TENANTS = 7
_ANSWER_WITHIN_S = 120.0


def draft(index: int, draw: random.Random) -> Draft:
    """The request with this number. Its id stands in its prompt, so that the provider's books name it too."""
    kind = KINDS[index % len(KINDS)]
    id_ = f"{kind}-{index}"
    return Draft(
        f"[{id_}] " + "and now? " * draw.randint(1, 12),
        id=id_,
        tenant=f"tenant-{draw.randrange(_TENANTS)}",
        priority="batch" if kind == "batch" else draw.choice(("interactive", "standard")),
        task="intent" if kind == "simple" else "analysis",
        max_wait=_MAX_WAIT_S,
        stream=kind == "streamed",
    )


def named(prompt: str) -> str:
    """The id that stands in a prompt of ours; empty for others."""
    return prompt[1:].partition("]")[0] if prompt.startswith("[") else ""


class Askers:
    """A program with the client, in a thread of its own: it asks for many requests at once, over a bad network.

    Attributes:
        answers: what it was told, by id; what it saw fail otherwise is in `failures`.
    """

    def __init__(self, url: str, drafts: Sequence[Draft]) -> None:
        self.answers: dict[str, Result] = {}
        self.failures: list[str] = []
        self._url, self._drafts = url, drafts
        self._thread = threading.Thread(target=lambda: asyncio.run(self._ask_all()), name="askers")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.join()

    async def _ask_all(self) -> None:
        async with Client(self._url) as client, asyncio.TaskGroup() as group:
            for one in self._drafts:
                group.create_task(self._ask(client, one))

    async def _ask(self, client: Client, one: Draft) -> None:
        """Until there is an answer: asking again with the same draft is what the client tells its users to do."""
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                while one.id not in self.answers:
                    try:
                        await client.submit_many([one])
                        self.answers[one.id] = await client.result(one.id, timeout_s=None)
                    except StoreUnavailable:
                        await asyncio.sleep(0.1)
        except Exception as error:  # whatever a user would see
            self.failures.append(f"{one.id}: {type(error).__name__}: {error}")
