"""Which of our errors a provider's words mean.

Pure. The status alone says little: 429 has six meanings, and an error may come inside a 200. The message is
kept for the caller, without secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from stages.providers import waits
from tokenweir.errors import ProviderError, ProviderLimited, ProviderRejected, ProviderUnavailable

# Without money, or with a key that isn't taken, every call fails until a person acts: look again once a minute.
OUT_PAUSE_S: Final = 60.0

# Some say "a day" of a request that will never do. Only who names a daily limit is believed for longer than this.
LONGEST_PAUSE_S: Final = 900.0

_LONGEST_RAW = 4096
_LONGEST_MESSAGE = 1000
_QUOTA_CODES: Final = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"}
# A bare 403 may be about one prompt (moderation, a firewall) and must not close the deployment for all others;
# these say that it is about our key.
_KEY_CODES: Final = {
    "access_denied",
    "account_deactivated",
    "authentication_error",
    "invalid_api_key",
    "permission_denied",
    "permission_error",
    "unsupported_country_region_territory",
}
_FILTER_CODES: Final = {"content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation"}
# What an error inside a 200 means when it names no status.
_STATUS_OF: Final = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "requests": 429,
    "tokens": 429,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "content_filter": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
}
_key_like = re.compile(r"\b(sk|pk|key|org)-[A-Za-z0-9_*-]{6,}|(?<=Bearer )\S+")
_requested = re.compile(r"Limit:? ([0-9]{1,12})\b.{0,80}?Requested:? ([0-9]{1,12})\b", re.IGNORECASE | re.DOTALL)


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """An error in the provider's own words: its code and type may be empty."""

    message: str
    code: str = ""
    type: str = ""

    @property
    def limit(self) -> str:
        """The limit it complains of: `requests`, `tokens`, or empty."""
        words = f"{self.type} {self.message}".lower()
        for name, short in (("tokens", "(tp"), ("requests", "(rp")):
            if self.type == name or short in words or f"{name} per " in words or f"{name[:-1]} rate limit" in words:
                return name
        return ""

    @property
    def daily(self) -> bool:
        """Whether it complains of a limit per day."""
        words = f"{self.code} {self.type} {self.message}".lower()
        return any(word in words for word in ("per day", "daily", "(rpd", "(tpd"))

    @property
    def too_large(self) -> bool:
        """Whether this request alone is larger than the whole limit, so that waiting won't help."""
        if "request too large" in self.message.lower():
            return True
        figures = _requested.search(self.message)
        return figures is not None and int(figures[2]) > int(figures[1])

    @property
    def overloaded(self) -> bool:
        """Whether too much goes on at the same time, at the provider or by us; more budget would be no cure."""
        words = f"{self.code} {self.type} {self.message}".lower()
        return "overloaded" in words or "concurren" in words


def scrub(text: str, secret: str) -> str:
    """`text` without `secret` or anything that looks like a key, and not longer than a caller wants to read.

    A secret of fewer than eight characters is a placeholder for servers that want none.
    """
    if len(secret) >= 8:
        text = text.replace(secret, "***")
    return _key_like.sub("***", text)[:_LONGEST_MESSAGE]


def of_status(status: int, headers: Mapping[str, str], raw: bytes, *, secret: str, now_s: float) -> ProviderError:
    """The error that a reply with `status` and body `raw` stands for.

    Args:
        headers: names in lower case. now_s: Unix time.
    """
    text = raw[:_LONGEST_RAW].decode(errors="replace")
    said = _said(_tree(raw), text, status)
    if status != 429:
        # Resets tell when a limit is full again, which is no cure for what failed otherwise.
        headers = {name: value for name, value in headers.items() if not name.startswith("x-ratelimit-reset")}
    wait = waits.retry_after_s(headers, text, limit=said.limit, now_s=waits.clock_s(headers, default_s=now_s))
    return _error(status, said, wait, secret)


def of_error(error: Any, *, secret: str) -> ProviderError:
    """The error that the error object `error` inside a 200 stands for."""
    said = _said({"error": error}, "", 200)
    text = msgspec.json.encode(error)[:_LONGEST_RAW].decode(errors="replace")
    wait = waits.retry_after_s({}, text, limit=said.limit, now_s=0)
    return _error(_status_inside(error, said), said, wait, secret)


def _error(status: int, said: Said, wait_s: float | None, secret: str) -> ProviderError:
    message = scrub(said.message, secret)
    if status in (413, 429) and said.too_large:
        return ProviderRejected(message, reason="too_large", code="too_large_for_limit")
    if status == 402 or _QUOTA_CODES & {said.code, said.type}:
        return ProviderLimited(message, reason="quota_exhausted", retry_after_s=OUT_PAUSE_S)
    if status == 401 or (status == 403 and _KEY_CODES & {said.code.lower(), said.type.lower()}):
        return ProviderLimited(message, reason="key_refused", retry_after_s=OUT_PAUSE_S)
    if status == 429 and not said.overloaded:
        if wait_s is not None and not said.daily:
            wait_s = min(wait_s, LONGEST_PAUSE_S)
        return ProviderLimited(message, reason="provider_429", retry_after_s=wait_s)
    if status in (408, 409, 429) or not 400 <= status < 500:
        reason = "overloaded" if status == 429 else f"provider_{status}"
        return ProviderUnavailable(message, reason=reason, retry_after_s=wait_s)
    if _FILTER_CODES & {said.code, said.type}:
        return ProviderRejected(message, reason="content_filter", code="content_filter")
    return ProviderRejected(message, reason=f"provider_{status}")


def _tree(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _said(tree: Any, text: str, status: int) -> Said:
    """The error in `tree`, in whichever of the usual shapes; else `text`, unless it is a page for people."""
    if isinstance(tree, list) and tree:
        tree = tree[0]
    error = tree.get("error", tree) if isinstance(tree, dict) else tree
    if isinstance(error, dict):
        message = next((str(error[key]) for key in ("message", "detail", "error") if error.get(key)), "")
        inner = error.get("innererror")
        code = inner.get("code") if not error.get("code") and isinstance(inner, dict) else error.get("code")
        return Said(
            message=message or f"the provider answered {status} without a message",
            code=str(code or ""),
            type=str(error.get("type") or error.get("status") or ""),
        )
    if isinstance(error, str) and error:
        return Said(message=error)
    text = text.strip()
    page = not text or text.startswith("<")
    return Said(message=f"the provider answered {status} without a readable error" if page else text)


def _status_inside(error: Any, said: Said) -> int:
    if isinstance(error, dict):
        for value in (error.get("code"), error.get("status")):
            if isinstance(value, int | str) and re.fullmatch(r"[1-9][0-9]{2}", str(value)):
                return int(value)
    return _STATUS_OF.get(said.code) or _STATUS_OF.get(said.type) or 500
