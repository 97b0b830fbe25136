"""Calls the provider for requests that the gate has granted, and says what becomes of them.

Every granted delivery is one HTTP call. A further attempt is the gate's to grant, so failures go back as
`Retry` values; nothing is repeated here.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from pipeline.answer import Stopwatch, Times, answered, failed
from pipeline.config import Deployment
from pipeline.message import Request
from pipeline.outcome import Done, Failure, Late, Outcome, Retry, Used
from pipeline.stage import Delivery
from stages.providers.openai_chat import OpenAIChat
from tokenweir.errors import ErrorCode, ProviderError, ProviderLimited, ProviderRejected, ProviderUnavailable
from tokenweir.wire import Usage

log = structlog.get_logger()

# A 429 says that our numbers are wrong, not that the request is: it gets more tries than a failing provider.
_LIMITED_TRIES_FACTOR = 3
_BACKOFF_S = (0.5, 2.0)
# Until a person acts every call of the deployment fails: what it is, what ends it, and what its callers are told.
_OUT: Mapping[str, tuple[str, str, ErrorCode]] = {
    "quota_exhausted": (
        "says that the account has no quota left",
        "pay or raise the quota at the provider",
        "quota_exhausted",
    ),
    "key_refused": ("refuses its key", "set a valid key and restart the workers", "provider_rejected"),
}


class Premium:
    """The stage of paid calls.

    Args:
        keys: the API key of each deployment, by its name.
        max_attempts: so often a request is called for before its caller gets an error.
        jitter: a random number between two bounds; a test passes its own.
    """

    name = "premium"
    lanes: tuple[str, ...] = ("premium",)
    calls = True
    ready = True

    def __init__(
        self,
        deployments: Sequence[Deployment],
        *,
        keys: Mapping[str, str],
        max_attempts: int,
        concurrency: int,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.concurrency = concurrency
        self.longest_s = max(one.call_s for one in deployments)
        self._providers = {one.name: OpenAIChat(one, keys[one.name]) for one in deployments}
        self._models = {one.name: one.model for one in deployments}
        self._max_attempts = max_attempts
        self._jitter = jitter
        # Deployments that are out: why, and since when (monotonic). So each incident is said once.
        self._out: dict[str, tuple[str, float]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Make the clients before the first request has to wait for them."""
        for provider in self._providers.values():
            provider.connect()

    async def aclose(self) -> None:
        """Close the connections to all providers."""
        for provider in self._providers.values():
            await provider.aclose()

    async def handle(self, delivery: Delivery) -> Outcome:
        """The answer, a further attempt, or an error for the caller; see `_outcome` for which failure means what."""
        watch = Stopwatch(delivery.waited_ms)
        request = delivery.request
        spoke = False

        def on_text(text: str) -> None:
            nonlocal spoke
            spoke = True
            delivery.emit(text)

        try:
            provider = self._providers.get(delivery.deployment)
            if provider is None:  # another configuration granted it, e.g. in the middle of a rolling update
                raise ProviderUnavailable(f"no deployment {delivery.deployment!r} here", reason="deployment_unknown")
            if time.monotonic() > delivery.call_by:
                return Late(request=request)
            watch.call_started()
            began_s = time.monotonic()
            answer = await provider.answer(request, on_text, delivery.hear)
        except ProviderError as error:
            log.debug("premium_call_failed", reason=error.reason, deployment=delivery.deployment)
            if error.reason in _OUT:
                self._tell_out(delivery.deployment, error)
            return self._outcome(request, error, watch.times(), deployment=delivery.deployment, spoke=spoke)
        if self._out and self._out.get(delivery.deployment, ("", began_s))[1] < began_s:
            del self._out[delivery.deployment]
            log.info("deployment_back", deployment=delivery.deployment)
        return Done(
            result=answered(request, answer, route="premium", times=watch.times(answer.first_s)),
            priority=request.priority,
            stream=request.stream,
            used=_used(answer.usage),
        )

    def _tell_out(self, deployment: str, error: ProviderError) -> None:
        """Say that a person is needed: once, until the deployment answers again."""
        known = self._out.get(deployment)
        if known and known[0] == error.reason:
            return
        self._out[deployment] = (error.reason, time.monotonic())
        trouble, cure, _ = _OUT[error.reason]
        log.error(
            "deployment_out",
            deployment=deployment,
            reason=error.reason,
            trouble=f"its provider {trouble}",
            said=str(error),
            effect="closed for all, one probe a minute; other deployments and the edge go on",
            cure=f"{cure}; then `tokenweir limits resume {deployment}`, or wait for the probe",
        )

    def _outcome(
        self, request: Request, error: ProviderError, times: Times, *, deployment: str, spoke: bool
    ) -> Outcome:
        """What becomes of a request whose call brought no answer.

        A refusal before any text cost no tokens. What failed otherwise may have been paid: its reservation stands.
        """
        model = self._models.get(deployment, "")
        if isinstance(error, ProviderRejected):
            result = failed(request, error.code, str(error), route="premium", model=model, times=times)
            return Done(
                result=result, priority=request.priority, stream=request.stream, used=None if spoke else Used(0, 0)
            )
        limited = isinstance(error, ProviderLimited)
        backoff_s = self._jitter(*_BACKOFF_S) * request.attempt
        stated_s = error.retry_after_s or backoff_s
        failure = Failure(error.reason, stated_s if limited else 0, error.reason == "provider_429")
        if request.attempt >= self._max_attempts * (_LIMITED_TRIES_FACTOR if limited else 1):
            result = failed(request, *_given_up(request, error, deployment), route="premium", model=model, times=times)
            return Done(result=result, priority=request.priority, stream=request.stream, failure=failure)
        return Retry(
            request=msgspec.structs.replace(request, attempt=request.attempt + 1),
            failure=failure,
            # A pause keeps this deployment from everybody; another one may serve the request at once.
            wait_s=0 if limited else max(stated_s, backoff_s),
        )


def _given_up(request: Request, error: ProviderError, deployment: str) -> tuple[ErrorCode, str]:
    """What the caller of a request is told whose attempts are used up."""
    if error.reason not in _OUT:
        return "provider_unavailable", f"given up after {request.attempt} attempts; the last one: {error}"
    trouble, cure, code = _OUT[error.reason]
    return code, (
        f"given up after {request.attempt} attempts: the provider of deployment {deployment!r} {trouble}; its operator "
        f"must {cure}; it said: {error}"
    )


def _used(usage: Usage) -> Used | None:
    """What settles the grant. All that isn't the prompt is output, also what a model thought and didn't say."""
    return None if usage.estimated else Used(usage.prompt_tokens, usage.total_tokens - usage.prompt_tokens)
