"""Chat completions from any server that speaks OpenAI's API. The only module that knows `openai`.

The official client makes the call and keeps the connections; what comes back is decoded here, since its
typed objects cost five times the CPU of the plain values that a completion is put together from.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Any, cast

import anyio
import httpx2
import msgspec
import openai

from pipeline.answer import Answer
from pipeline.config import Deployment
from pipeline.message import Request
from pipeline.stage import Hear
from stages.providers import failures
from stages.providers.assembly import Assembly
from stages.providers.events import Events, decode
from stages.providers.headers import readings
from tokenweir.errors import ProviderError, ProviderUnavailable

_JSON_TRUE = msgspec.Raw(b"true")
_USAGE_TOO = msgspec.Raw(b'{"include_usage":true}')
# Values stay as they came: only the names on top are looked at.
_shallow = msgspec.json.Decoder(dict[str, msgspec.Raw])
# After the last event only the end of the response is awaited, so that its connection can serve again.
_LINGER_S = 0.1
_END = b"[DONE]"
_EVENT_STARTS = (b"data:", b"event:", b":")
# Some failures of TLS leave the transport untranslated: the last two.
_TRANSPORT_ERRORS = (httpx2.HTTPError, httpx2.StreamError, OSError, anyio.EndOfStream)


class OpenAIChat:
    """One deployment at its provider. One HTTP call per `answer`, never more."""

    def __init__(self, deployment: Deployment, key: str) -> None:
        self._deployment = deployment
        self._key = key
        self._model = msgspec.Raw(msgspec.json.encode(deployment.model))
        # Made by `connect`, in the event loop that uses it; shared by all calls.
        self._client: openai.AsyncOpenAI | None = None

    def connect(self) -> openai.AsyncOpenAI:
        """The client, made at the first call of this: it costs 30 ms, and belongs to one event loop."""
        if self._client is None:
            # All other time-outs are the one timer in `answer`.
            timeout = httpx2.Timeout(None, connect=self._deployment.connect_s)
            self._client = openai.AsyncOpenAI(
                api_key=self._key or "none",
                base_url=self._deployment.base_url,
                timeout=timeout,
                # A hidden repeat, or a redirect, would be a call that the gate never granted.
                max_retries=0,
                # aiohttp's parser in C: half the CPU of the default transport, at 10 and at 50 chunks.
                http_client=openai.DefaultAioHttpClient(timeout=timeout, follow_redirects=False),
            )
        return self._client

    async def aclose(self) -> None:
        """Close the connections; `answer` must not be running."""
        if self._client is not None:
            await self._client.close()

    async def answer(self, request: Request, on_text: Callable[[str], None], on_headers: Hear) -> Answer:
        """The provider's answer to `request`; the text of its first choice goes to `on_text` as it comes.

        What the response's headers say of the limits goes to `on_headers` as soon as they are there, also when
        the response is an error.

        Raises:
            ProviderLimited: 429, or the provider refuses our key, or the account has no quota left.
            ProviderUnavailable: any failure that may pass, time-outs and cut streams too.
            ProviderRejected: the provider won't ever answer this request.
        """
        body, choices = self._body(request)
        assembly = Assembly(request, model=self._deployment.model, choices=choices)
        timer = _Timer(self._deployment)
        try:
            async with timer.limit:
                await self._call(body, assembly, timer, on_text, on_headers)
        except TimeoutError:
            if not assembly.complete:
                raise ProviderUnavailable(f"no answer in time: {timer.reason}", reason=timer.reason) from None
        finally:
            timer.stop()
        if assembly.empty:
            raise ProviderUnavailable("a reply without an answer in it", reason="not_an_answer")
        if not assembly.complete:
            raise ProviderUnavailable("the answer was cut off", reason="stream_cut")
        return assembly.answer()

    def _body(self, request: Request) -> tuple[bytes, int]:
        """The body to send, and how many choices it asks for."""
        fields = _shallow.decode(request.body)
        fields["model"] = self._model
        fields["stream"] = _JSON_TRUE
        fields["stream_options"] = _USAGE_TOO
        asked = msgspec.json.decode(fields["n"]) if "n" in fields else 1
        return msgspec.json.encode(fields), asked if isinstance(asked, int) else 1

    async def _call(
        self, body: bytes, assembly: Assembly, timer: _Timer, on_text: Callable[[str], None], on_headers: Hear
    ) -> None:
        response: httpx2.Response | None = None
        try:
            response = await self._post(body)
            _hear(response, on_headers)
            await self._read(response, assembly, timer, on_text)
        except openai.APIError as error:
            if isinstance(error, openai.APIStatusError):
                _hear(error.response, on_headers)
            raise self._translated(error) from None  # its text may quote the key
        except _TRANSPORT_ERRORS as error:
            # All choices may be at their end, and only the usage is missing.
            if not assembly.complete:
                kind = type(_origin(error)).__name__
                raise ProviderUnavailable(f"the answer was cut off: {kind}", reason="stream_cut") from None
        except ValueError as error:
            message = failures.scrub(f"a reply that isn't an answer: {error}", self._key)
            raise ProviderUnavailable(message, reason="not_an_answer") from None
        finally:
            if response is not None:
                await response.aclose()

    async def _post(self, body: bytes) -> httpx2.Response:
        """The response, its body unread."""
        # With this `cast_to` the client hands the response over as it is, despite the type it declares.
        return cast(
            "httpx2.Response",
            await self.connect().post(
                "/chat/completions",
                cast_to=httpx2.Response,
                content=body,
                stream=True,
                stream_cls=openai.AsyncStream[Any],
            ),
        )

    async def _read(
        self, response: httpx2.Response, assembly: Assembly, timer: _Timer, on_text: Callable[[str], None]
    ) -> None:
        streams = "text/event-stream" in response.headers.get("content-type", "")
        events, whole = Events(), b""
        async with aclosing(response.aiter_bytes()) as pieces:
            async for piece in pieces:
                timer.moved()
                # Some servers stream under another label, and some don't stream although asked to.
                streams = streams or (not whole and piece.lstrip().startswith(_EVENT_STARTS))
                if streams:
                    self._take(events.feed(piece), assembly, timer, on_text)
                else:
                    whole += piece
        if streams:
            self._take(events.end(), assembly, timer, on_text)
        elif whole:
            self._take([(b"", whole), (b"", _END)], assembly, timer, on_text)

    def _take(
        self,
        events: Iterable[tuple[bytes, bytes]],
        assembly: Assembly,
        timer: _Timer,
        on_text: Callable[[str], None],
    ) -> None:
        for name, data in events:
            if data == _END:
                assembly.end()
                timer.linger()
                continue
            chunk = decode(data)
            error = chunk.get("error") if isinstance(chunk, dict) else None
            if error or name == b"error":
                raise failures.of_error(error or chunk, secret=self._key)
            if text := assembly.add(chunk):
                on_text(text)

    def _translated(self, error: openai.APIError) -> ProviderError:
        if isinstance(error, openai.APIStatusError):
            response = error.response
            return failures.of_status(
                response.status_code, response.headers, response.content, secret=self._key, now_s=time.time()
            )
        cause = _origin(error)
        if isinstance(cause, TimeoutError):
            return ProviderUnavailable("no connection in time", reason="connect_timeout")
        return ProviderUnavailable(f"no connection: {type(cause).__name__}", reason="connection_failed")


def _hear(response: httpx2.Response, on_headers: Hear) -> None:
    if found := readings(response.headers.raw, now_s=time.time()):
        on_headers(found, response.status_code < 400)


class _Timer:
    """Ends a call that is late. It looks when a wait may be over: to move a timer at every chunk costs more."""

    def __init__(self, deployment: Deployment) -> None:
        self._loop = asyncio.get_running_loop()
        self._between_s = deployment.between_chunks_s
        # All of it belongs to the task of this call.
        self._moved_at = self._loop.time()
        self._allowed_s = deployment.connect_s + deployment.first_byte_s
        self._waiting_for = "first_byte_timeout"
        self._look = self._loop.call_later(self._allowed_s, self._check)
        self.reason = "call_timeout"
        self.limit = asyncio.timeout_at(self._moved_at + deployment.call_s)

    def moved(self) -> None:
        """Something has come."""
        self._moved_at = self._loop.time()
        if self._waiting_for == "first_byte_timeout":
            self._waiting_for = "between_chunks_timeout"
            self._allow(self._between_s)

    def linger(self) -> None:
        """All has come; don't wait long for the end of the response."""
        self._allow(_LINGER_S)

    def stop(self) -> None:
        """The call is over."""
        self._look.cancel()

    def _allow(self, wait_s: float) -> None:
        self._allowed_s = wait_s
        self._look.cancel()
        self._check()

    def _check(self) -> None:
        due = self._moved_at + self._allowed_s
        if self._loop.time() >= due:
            self.reason = self._waiting_for
            self.limit.reschedule(due)
        else:
            self._look = self._loop.call_at(due, self._check)


def _origin(error: BaseException) -> BaseException:
    """The first of the failures that led to `error`. Its kind is all we tell: its text may hold an address."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
