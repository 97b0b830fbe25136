"""Every error this project raises, and what the caller is expected to do.

* TokenweirError
  * ConfigError           start-up only: one line with the place and the cure, exit with 2
  * RequestError          this request can never succeed; carries `code`, one of `ErrorCode`
  * QueueFull             come back after `retry_after_s`; nothing was queued
    * PoolClosed          the same, because operators have drained the pool
  * LimitReached          no room within the time given; come back after `retry_after_s`, nothing was charged
  * ResultTimeout         no result yet; the request goes on and can be asked for again
  * ProviderError
    * ProviderLimited     429, refused key, no quota: pause the deployment for all, and alarm
    * ProviderUnavailable 5xx, timeout, refused: try again later or elsewhere
    * ProviderRejected    4xx: answer the caller with the reason, don't retry
  * StoreUnavailable      Redis didn't answer or refused: stop admitting, never guess

Expected endings (deferred, expired, dead) are values, not exceptions.
"""

from __future__ import annotations

from typing import Final, Literal

ErrorCode = Literal[
    "invalid_request",  # the request can't be understood; mend it
    "too_large_for_limit",  # more tokens than any deployment may ever grant; make it smaller
    "queue_full",  # too many are waiting; come back later
    "deadline_exceeded",  # its deadline passed before it was answered
    "cancelled",  # its producer cancelled it
    "provider_rejected",  # the provider refused this request for good
    "provider_unavailable",  # the provider failed at every attempt
    "quota_exhausted",  # the provider account has no money or quota left
    "content_filter",  # the provider's filter refused the content
    "dead_letter",  # no further attempt; kept whole in `dead`, can be replayed
    "internal",  # our own fault; the log has the details
]

# Error bodies follow OpenAI's form, so that clients written for it understand ours.
ERROR_TYPES: Final[dict[str, str]] = {
    "invalid_request": "invalid_request_error",
    "too_large_for_limit": "invalid_request_error",
    "queue_full": "rate_limit_error",
    "provider_rejected": "invalid_request_error",
    "content_filter": "invalid_request_error",
    "quota_exhausted": "insufficient_quota",
}


# How servers say so: by itself and inside of a script, Redis and Valkey.
_FORBIDDEN: Final = (
    *("NOPERM", "NoPermission", "ACL failure", "The user executing the script"),
    *("WRONGPASS", "NOAUTH", "AuthenticationError"),
)


class TokenweirError(Exception):
    """Root of the tree; catch it to catch everything this project raises on purpose."""


class ConfigError(TokenweirError):
    """The configuration can't be used; the text names the place and the cure."""


class RequestError(TokenweirError):
    """This request can never succeed as it stands."""

    def __init__(self, message: str, *, code: ErrorCode = "invalid_request") -> None:
        super().__init__(message)
        self.code: ErrorCode = code


class QueueFull(TokenweirError):
    """More requests wait than `max_waiting` allows; nothing was queued."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PoolClosed(QueueFull):
    """Operators have drained the pool: it takes nothing in until they open it; nothing was queued."""

    def __init__(self, pool: str, *, retry_after_s: float) -> None:
        text = f"pool {pool} is drained and takes nothing in until `tokenweir drain --open`"
        super().__init__(f"{text}; try again in {retry_after_s:.0f} s", retry_after_s=retry_after_s)


class LimitReached(TokenweirError):
    """No room in the budget within the time given; nothing was charged. `retry_after_s`: when there may be."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ResultTimeout(TokenweirError):
    """No terminal result within the time given; the request itself goes on."""


class ProviderError(TokenweirError):
    """A provider call brought no answer. `reason` is a word for logs and metrics, such as `provider_503`."""

    def __init__(self, message: str, *, reason: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class ProviderLimited(ProviderError):
    """The provider takes no calls for now: a 429 although the gate granted it, a refused key, a quota used up."""


class ProviderUnavailable(ProviderError):
    """The provider failed in a way that may pass: 5xx, timeout, connection, cut stream."""


class ProviderRejected(ProviderError):
    """The provider refused this request for good."""

    def __init__(self, message: str, *, reason: str = "", code: ErrorCode = "provider_rejected") -> None:
        super().__init__(message, reason=reason)
        self.code: ErrorCode = code


class StoreUnavailable(TokenweirError):
    """Redis didn't answer, or refused; whether the last command ran is unknown."""

    @property
    def forbidden(self) -> bool:
        """Whether Redis answered that this user may not: a right is missing, or the password is wrong."""
        return any(word in str(self) for word in _FORBIDDEN)

    @property
    def full(self) -> bool:
        """Whether Redis answered that it is at its `maxmemory`: nothing was written."""
        return "OutOfMemoryError" in str(self)
