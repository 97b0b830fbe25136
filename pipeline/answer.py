"""What a model said, and the terminal result made of it.

Pure, and the only place that builds a `Result`: every ending, good or bad, carries the request's own
fields back to its producer in the same way.
"""

from __future__ import annotations

import math
import time

import msgspec

from pipeline.message import Request
from tokenweir.errors import ErrorCode
from tokenweir.wire import Result, ResultStatus, Route, Usage, error_body

# English prose runs near 4; 3 over-counts, and over-counting never causes a 429.
_BYTES_PER_TOKEN = 3.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, whichever model gave it.

    Attributes:
        body: a chat-completion object as JSON, all choices in it. content: the text of the first choice.
        first_s: monotonic time of the first text, tool call or refusal; -1 = there was none.
    """

    model: str
    content: str
    body: bytes
    finish_reason: str
    usage: Usage
    first_s: float = -1


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from ingest to the start of the model call, its first token and its end; -1 = didn't happen."""

    waited_ms: float = -1
    ttft_ms: float = -1
    total_ms: float = -1


class Stopwatch:
    """Measures one model call, and tells its times from ingest on. Made when the stage is handed the delivery."""

    def __init__(self, waited_ms: float) -> None:
        self._handed_s = time.monotonic()
        self._before_ms = max(0.0, waited_ms)
        self._waited_ms = self._before_ms

    def call_started(self) -> None:
        """The wait is over."""
        self._waited_ms = self._since_ingest_ms(time.monotonic())

    def times(self, first_s: float = -1) -> Times:
        """The times of a call that ends now, and had its first token at the monotonic time `first_s`."""
        return Times(
            waited_ms=self._waited_ms,
            ttft_ms=self._since_ingest_ms(first_s) if first_s >= 0 else -1,
            total_ms=self._since_ingest_ms(time.monotonic()),
        )

    def _since_ingest_ms(self, moment_s: float) -> float:
        return self._before_ms + (moment_s - self._handed_s) * 1000


def estimated(request: Request, output_bytes: int) -> Usage:
    """Usage for an answer of `output_bytes` whose model counted nothing."""
    completion = math.ceil(output_bytes / _BYTES_PER_TOKEN)
    return Usage(
        prompt_tokens=request.prompt_tokens,
        completion_tokens=completion,
        total_tokens=request.prompt_tokens + completion,
        estimated=True,
    )


def answered(request: Request, answer: Answer, *, route: Route, times: Times) -> Result:
    """The result of a request that got its answer."""
    return msgspec.structs.replace(
        _ended(request, times),
        status="ok",
        route=route,
        model=answer.model,
        content=answer.content,
        body=msgspec.Raw(answer.body),
        finish_reason=answer.finish_reason,
        usage=answer.usage,
    )


def failed(
    request: Request,
    code: ErrorCode,
    message: str,
    *,
    status: ResultStatus = "error",
    route: Route = "none",
    model: str = "",
    times: Times | None = None,
) -> Result:
    """The result of a request that gets no answer; its body is an OpenAI error object.

    Args:
        message: for the caller; says what to do, and holds no secret.
    """
    body = msgspec.Raw(error_body(code, message))
    ended = _ended(request, times or Times())
    return msgspec.structs.replace(ended, status=status, route=route, model=model, body=body, code=code)


def _ended(request: Request, times: Times) -> Result:
    """What every result says of its request."""
    return Result(
        id=request.id,
        status="error",
        attempt=request.attempt,
        replay=request.replay,
        metadata=request.metadata,
        waited_ms=times.waited_ms,
        ttft_ms=times.ttft_ms,
        total_ms=times.total_ms,
    )
