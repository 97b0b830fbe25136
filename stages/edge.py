"""Answers simple requests with the local model, and keeps that model warm.

Whatever goes wrong here, the request goes back to its gate, marked as nothing for the edge: it never fails
because a local model did.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
import structlog

from pipeline.alive import all_alive
from pipeline.answer import Stopwatch, answered
from pipeline.config import Edge
from pipeline.message import Request
from pipeline.outcome import Done, Forward, Outcome
from pipeline.stage import Delivery
from stages.providers import waits
from stages.providers.ollama_chat import CANNOT_SERVE, MODEL_MISSING, OllamaChat
from tokenweir.errors import ProviderUnavailable

log = structlog.get_logger()

# So many failed calls in a row close the edge until the model has been loaded anew.
_TRIP_AFTER: Final = 3
# Failures that say nothing about the model.
_REQUESTS_OWN: Final = {CANNOT_SERVE, "edge_400"}
_RECHECK_S: Final = (0.5, 10.0)
# How often a model that never unloads is looked after.
_LOOK_S: Final = 300.0


class EdgeCall:
    """The stage of local calls.

    Args:
        jitter: a random number between two bounds; a test passes its own.
    """

    name = "edge"
    lanes: tuple[str, ...] = ("edge",)
    calls = False

    def __init__(self, settings: Edge, *, jitter: Callable[[float, float], float] = random.uniform) -> None:
        self.concurrency = settings.concurrency
        self.longest_s = settings.call_s
        self._settings = settings
        self._model = OllamaChat(settings)
        self._jitter = jitter
        # Written by `_keep_warm` and, when the calls fail, by `_failed`.
        self._warm = False
        self._failures = 0  # of calls, in a row
        self._troubles = 0  # closings and failed loads since the last good call
        self._tripped = asyncio.Event()
        self._missing_told = False

    @property
    def ready(self) -> bool:
        """Whether the model is loaded, and answers."""
        return self._warm

    async def aclose(self) -> None:
        """Close the connections."""
        await self._model.aclose()

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the model loaded until `stop`, and find out when it is back."""
        async with asyncio.TaskGroup() as group:
            warming = group.create_task(self._keep_warm(), name="edge-warm")
            await all_alive([warming], stop)
            warming.cancel()

    async def handle(self, delivery: Delivery) -> Outcome:
        """The answer, or the way back to the gate."""
        watch = Stopwatch(delivery.waited_ms)
        request = delivery.request
        spoke = False

        def on_text(text: str) -> None:
            nonlocal spoke
            spoke = True
            delivery.emit(text)

        watch.call_started()
        try:
            async with asyncio.timeout(self._settings.call_s):
                answer = await self._model.answer(request, on_text)
        except TimeoutError:
            return self._failed(request, "edge_call_timeout", spoke=spoke)
        except ProviderUnavailable as error:
            return self._failed(request, error.reason, spoke=spoke)
        self._failures = self._troubles = 0
        result = answered(request, answer, route="edge", times=watch.times(answer.first_s))
        return Done(result=result, priority=request.priority, stream=request.stream)

    def _failed(self, request: Request, reason: str, *, spoke: bool) -> Outcome:
        log.debug("edge_call_failed", reason=reason)
        if reason not in _REQUESTS_OWN:
            self._failures += 1
        if self._failures >= _TRIP_AFTER and self._warm:
            log.debug("edge_closed", reason=reason)
            self._warm = False
            self._troubles += 1
            self._tripped.set()
        # Whoever has read deltas must see that the answer starts again.
        attempt = request.attempt + 1 if spoke and request.stream else request.attempt
        return Forward(
            request=msgspec.structs.replace(request, edge=False, attempt=attempt), to=f"gate:{request.priority}"
        )

    async def _keep_warm(self) -> None:
        while True:
            await self._load()
            # A closing while the model was loading is answered by that very load.
            self._tripped.clear()
            pause_s = self._renewal_s() if self._warm else self._recheck_s()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._tripped.wait()
            if self._tripped.is_set():
                await asyncio.sleep(self._recheck_s())

    async def _load(self) -> None:
        """Load the model, or renew its stay; `ready` says afterwards whether it is there."""
        try:
            async with asyncio.timeout(self._settings.load_s):
                await self._model.load()
        except (TimeoutError, ProviderUnavailable) as error:
            reason = error.reason if isinstance(error, ProviderUnavailable) else "edge_load_timeout"
            self._warm = False
            self._troubles += 1
            log.debug("edge_load_failed", reason=reason)
            if reason == MODEL_MISSING and not self._missing_told:
                self._missing_told = True
                log.warning(
                    "edge_model_missing", model=self._settings.model, cure=f"ollama pull {self._settings.model}"
                )
            return
        self._warm = True
        self._failures = 0
        self._missing_told = False

    def _recheck_s(self) -> float:
        """Longer with every trouble, and never the same for two workers."""
        shortest, longest = _RECHECK_S
        bound = min(longest, shortest * 2.0 ** min(self._troubles, 10))
        return self._jitter(max(shortest, bound / 2), bound)

    def _renewal_s(self) -> float:
        """A little more than half the time for which Ollama keeps the model."""
        kept_s = waits.wait_s(self._settings.keep_alive, now_s=0)
        half_s = kept_s / 2 if kept_s else _LOOK_S
        return self._jitter(1.0, 1.2) * half_s
