"""Logging: one line per request and process, console on a terminal, JSON elsewhere.

Events are snake_case and past tense. `request_id` and figures are fields. Never a prompt, an answer or a
key: whatever looks like a secret is masked on the way out, as a second line of defence.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

# A provider's key, a bearer token, the password of a URL.
_SECRET = re.compile(r"(sk-|Bearer\s+)[A-Za-z0-9_\-.]{4,}|(://[^:/@\s]*:)[^@\s]+(?=@)")


def setup(*, debug: bool = False, stream: TextIO | None = None) -> None:
    """Log to `stream` (default stderr), from info up or, with `debug`, everything."""
    out = stream or sys.stderr
    renderer: Any
    if out.isatty():
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        chain: list[Any] = []
    else:
        renderer = structlog.processors.JSONRenderer()
        # Without the variables of the frames: these hold prompts and keys.
        transform = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        chain = [structlog.processors.ExceptionRenderer(transform)]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *chain,
            _mask,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if debug else logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=True,
    )
    # Libraries log through the standard library; only their warnings are of interest.
    logging.basicConfig(stream=out, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")


def _mask(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask what looks like a key or a password."""
    for name, value in event.items():
        if isinstance(value, str) and _SECRET.search(value):
            event[name] = _SECRET.sub(r"\1\2***", value)
    return event
