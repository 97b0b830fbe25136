"""Chats with a local model behind Ollama's API. The only module that knows `ollama`.

All trouble is `ProviderUnavailable`: for every request there is another way, so what exactly went wrong is
for the log alone (`reason`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

import httpx
import msgspec
import ollama

from pipeline.answer import Answer, estimated
from pipeline.config import Edge
from pipeline.message import Request
from tokenweir.errors import ProviderUnavailable
from tokenweir.wire import Usage

MODEL_MISSING: Final = "model_missing"
CANNOT_SERVE: Final = "edge_cannot_serve"

# A host that doesn't answer at all must not take the whole time of a call.
_CONNECT_S = 5.0
_LONGEST_MESSAGE = 500
_SAME_OPTIONS: Final = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty")


class OllamaChat:
    """One model on one Ollama server."""

    def __init__(self, settings: Edge) -> None:
        self._settings = settings
        # Made at the first call, in the event loop that uses it; shared by all calls.
        self._client: ollama.AsyncClient | None = None

    async def aclose(self) -> None:
        """Close the connections; nothing else must be running."""
        if self._client is not None:
            await self._client.close()  # type: ignore[no-untyped-call]

    async def load(self) -> None:
        """Have the model in memory, and stay there for `keep_alive` from now.

        Takes as long as loading takes: to give up earlier aborts the load, which then starts anew.

        Raises:
            ProviderUnavailable: it isn't loaded; reason `MODEL_MISSING` = the server doesn't have it.
        """
        # The same context size as in a call: another one would load the model anew.
        options = {"num_ctx": self._settings.num_ctx}
        try:
            await self._connected().generate(
                self._settings.model, "", options=options, keep_alive=self._settings.keep_alive
            )
        except _TROUBLE as error:
            raise _translated(error) from error

    async def answer(self, request: Request, on_text: Callable[[str], None]) -> Answer:
        """The model's answer to `request`; its text goes to `on_text` as it comes.

        Raises:
            ProviderUnavailable: there is none, for whatever reason.
        """
        chat = request.chat()
        if chat.get("n", 1) != 1 or request.tokens > self._settings.num_ctx:
            raise ProviderUnavailable("several choices, or longer than the context", reason=CANNOT_SERVE)
        texts: list[str] = []
        first_s, last = -1.0, None
        try:
            # The client declares an iterator, and returns the generator that must be closed.
            stream = cast("AsyncGenerator[ollama.ChatResponse]", await self._stream(chat))
            async with aclosing(stream):
                async for part in stream:
                    if text := part.message.content:
                        first_s = time.monotonic() if first_s < 0 else first_s
                        texts.append(text)
                        on_text(text)
                    last = part
        except _TROUBLE as error:
            raise _translated(error) from error
        return self._answer(request, last, "".join(texts), first_s)

    def _connected(self) -> ollama.AsyncClient:
        if self._client is None:
            self._client = ollama.AsyncClient(
                self._settings.base_url,
                timeout=httpx.Timeout(None, connect=_CONNECT_S),
                follow_redirects=False,
            )
        return self._client

    async def _stream(self, chat: Mapping[str, Any]) -> object:
        options: dict[str, Any] = {"num_ctx": self._settings.num_ctx}
        if cap := max(chat.get("max_completion_tokens") or 0, chat.get("max_tokens") or 0):
            options["num_predict"] = cap
        options |= {name: chat[name] for name in _SAME_OPTIONS if chat.get(name) is not None}
        if stop := chat.get("stop"):
            options["stop"] = [stop] if isinstance(stop, str) else stop
        return await self._connected().chat(
            self._settings.model,
            [_message(one) for one in chat["messages"]],
            stream=True,
            format=_format(chat.get("response_format")),
            options=options,
            keep_alive=self._settings.keep_alive,
        )

    def _answer(self, request: Request, last: ollama.ChatResponse | None, text: str, first_s: float) -> Answer:
        if last is None or not last.done:
            raise ProviderUnavailable("the answer was cut off", reason="stream_cut")
        finish_reason = last.done_reason or "stop"
        if finish_reason not in ("stop", "length") or not text:
            # A load notice, or a model that spent its tokens on thinking.
            raise ProviderUnavailable(f"no text, ended by {finish_reason!r}", reason="not_an_answer")
        usage = _usage(request, last, text)
        body = {
            "id": f"chatcmpl-{request.id}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._settings.model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": finish_reason,
                }
            ],
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.total_tokens,
            },
        }
        return Answer(
            model=self._settings.model,
            content=text,
            body=msgspec.json.encode(body),
            finish_reason=finish_reason,
            usage=usage,
            first_s=first_s,
        )


def _usage(request: Request, last: ollama.ChatResponse, text: str) -> Usage:
    """The model's own count; an estimate where it leaves out one of the two, as it does for a cached prompt."""
    if last.prompt_eval_count is None or last.eval_count is None:
        return estimated(request, len(text.encode()))
    return Usage(
        prompt_tokens=last.prompt_eval_count,
        completion_tokens=last.eval_count,
        total_tokens=last.prompt_eval_count + last.eval_count,
    )


def _message(message: Mapping[str, Any]) -> dict[str, str]:
    """An OpenAI message as Ollama takes it. Parts are joined by lines, as other local servers do."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(str(part.get("text") or "") for part in content)
    role = str(message["role"])
    return {"role": "system" if role == "developer" else role, "content": content}


def _format(response_format: Mapping[str, Any] | None) -> Any:
    """Ollama's form of a response format: `json`, a schema, or nothing."""
    kind = (response_format or {}).get("type")
    if response_format and kind == "json_schema":
        return response_format["json_schema"].get("schema") or "json"
    return "json" if kind == "json_object" else None


# The client raises the last three where a reply isn't of Ollama's form: not JSON, no object, no message.
_TROUBLE = (
    ollama.ResponseError,
    httpx.HTTPError,
    httpx.StreamError,
    OSError,
    ValueError,
    AttributeError,
    TypeError,
)


def _translated(error: Exception) -> ProviderUnavailable:
    if not isinstance(error, ollama.ResponseError):
        return ProviderUnavailable(f"no answer: {type(error).__name__}", reason="edge_unreachable")
    message = str(error.error)[:_LONGEST_MESSAGE]
    if error.status_code == 404:
        return ProviderUnavailable(message, reason=MODEL_MISSING)
    inside = error.status_code < 0
    return ProviderUnavailable(message, reason="edge_error" if inside else f"edge_{error.status_code}")
