"""The edge side over HTTP: an Ollama server with one model, a few parallel slots and an unbounded queue behind them."""

import asyncio
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from aiohttp import web

from pipeline.sandbox.answers import Answer
from pipeline.sandbox.bodies import EdgeBody
from pipeline.sandbox.calls import Call
from pipeline.sandbox.delivery import deliver_half, deliver_stream, hang, hang_up, html_page, phrase
from pipeline.sandbox.faults import Fault
from pipeline.sandbox.state import State
from pipeline.sandbox.tokens import prompt_tokens

_FIRST_SHARE = 0.4  # of a call's time passes before its first word: a guess for short prompts on a small model
_FAILURE = "an error was encountered while running the model"
_DETAILS = {
    "parent_model": "",
    "format": "gguf",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "8.0B",
    "quantization_level": "Q4_K_M",
}
_BYTES = 4_920_753_328


class OllamaWire:
    """Handlers over one state. The slots outlive a reset, since calls in flight still hold them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._decoder = msgspec.json.Decoder(EdgeBody)
        self._slots = asyncio.Semaphore(state.settings.edge_parallel)
        self._loading = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/chat", self.answer),
            web.post("/api/generate", self.answer),
            web.get("/api/tags", self.tags),
            web.get("/api/ps", self.running),
            web.get("/api/version", self.version),
        ]

    async def version(self, http: web.Request) -> web.Response:
        """A version number, so that clients that ask for one start."""
        return _json({"version": "0.12.0"})

    async def tags(self, http: web.Request) -> web.Response:
        """The model that is installed."""
        return _json({"models": [{**self._card(), "modified_at": _stamp()}]})

    async def running(self, http: web.Request) -> web.Response:
        """The model, when it's loaded."""
        if not self._state.edge_loaded:
            return _json({"models": []})
        expires = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
        return _json({"models": [{**self._card(), "expires_at": expires, "size_vram": _BYTES, "context_length": 4096}]})

    def _card(self) -> dict[str, Any]:
        name = self._state.settings.edge_model
        digest = hashlib.sha256(name.encode()).hexdigest()
        return {"name": name, "model": name, "size": _BYTES, "digest": digest, "details": _DETAILS}

    async def answer(self, http: web.Request) -> web.StreamResponse:
        """One call of `/api/chat` or `/api/generate`."""
        raw = await http.read()
        state = self._state
        call = state.calls.open("edge", state.clock())
        try:
            response = await self._checked(http, raw, call)
            call.status = response.status
            return response
        finally:
            # Cancelled, or the write failed: the caller hung up. Otherwise its fate is known by now.
            state.calls.close(call, "gone")

    async def _checked(self, http: web.Request, raw: bytes, call: Call) -> web.StreamResponse:
        state = self._state
        try:
            body = self._decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            state.calls.close(call, "invalid")
            return _error(str(error), status=400)
        if body.model not in (state.settings.edge_model, state.settings.edge_model.removesuffix(":latest")):
            state.calls.close(call, "invalid")
            return _error(f"model '{body.model}' not found", status=404)
        texts = body.texts()
        prompt = "\n".join(texts)
        count = min(prompt_tokens(texts), body.context)
        last_text = texts[-1] if texts else ""
        call.describe(prompt, last_text=last_text, tokens=count + body.cap, stream=body.stream is not False)
        fault = state.faults.take("edge", prompt)
        if fault and fault.name != "slow":
            state.calls.close(call, "fault")
        is_chat = http.path.endswith("/chat")
        response = await self._respond(http, _Turn(body, is_chat, prompt, count, fault, state.settings.pieces))
        state.calls.close(call, "answered")
        return response

    async def _respond(self, http: web.Request, turn: "_Turn") -> web.StreamResponse:
        """The response, after queue, load and latency; a hanging call holds its slot, as it would for real."""
        state, fault = self._state, turn.fault
        if fault and fault.name == "status":
            return _error(fault.code or phrase(fault.status), status=fault.status)
        if fault and fault.name == "html":
            return html_page()
        arrived_s = state.clock()
        async with self._slots:
            began_s = state.clock()
            await self._load()
            loaded_s = state.clock()
            if fault and fault.name == "hang":
                await hang()
            if turn.body.unloads:
                state.edge_loaded = False
            if not turn.prompt:  # a call without a prompt only loads the model, or drops it
                reason = "unload" if turn.body.unloads else "load"
                return _json(turn.line("", done=True, done_reason=reason))
            took_s = state.edge_time() + (fault.delay_s if fault else 0.0)
            spent = turn.times(queued_s=began_s - arrived_s, load_s=loaded_s - began_s, took_s=took_s)
            answer = Answer.to(turn.prompt, cap=turn.body.cap, seed=state.settings.seed)
            if turn.body.stream is not False:
                return await _stream(http, turn, answer, spent, took_s)
            await asyncio.sleep(took_s)
            return await _plain(http, turn, answer, spent)

    async def _load(self) -> None:
        """Return with the model loaded. A caller who hangs up meanwhile aborts it: the next one begins anew."""
        settings = self._state.settings
        async with self._loading:
            if not self._state.edge_loaded:
                await asyncio.sleep(settings.edge_load_s / settings.time_scale)
                self._state.edge_loaded = True


class _Turn(msgspec.Struct, frozen=True):
    """A call that will be answered and what will strike it."""

    body: EdgeBody
    chat: bool
    prompt: str
    prompt_count: int
    fault: Fault | None
    pieces: int

    @property
    def struck(self) -> str | None:
        return self.fault.name if self.fault else None

    def line(self, text: str, *, done: bool, **more: Any) -> dict[str, Any]:
        """One line of a stream, or a whole answer."""
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"response": text}
        return {"model": self.body.model, "created_at": _stamp(), **said, "done": done, **more}

    def times(self, *, queued_s: float, load_s: float, took_s: float) -> dict[str, int]:
        """Ollama's durations, in nanoseconds."""
        return {
            "total_duration": _ns(queued_s + load_s + took_s),
            "load_duration": _ns(load_s),
            "prompt_eval_count": self.prompt_count,
            "prompt_eval_duration": _ns(took_s * _FIRST_SHARE),
            "eval_duration": _ns(took_s * (1 - _FIRST_SHARE)),
        }

    def end(self, text: str, answer: Answer, spent: Mapping[str, int]) -> dict[str, Any]:
        """The last line, with the counts."""
        return self.line(text, done=True, done_reason=answer.finish_reason, **spent, eval_count=answer.tokens)


async def _stream(
    http: web.Request, turn: _Turn, answer: Answer, spent: Mapping[str, int], took_s: float
) -> web.StreamResponse:
    lines = [turn.line(piece, done=False) for piece in answer.pieces(turn.pieces)]
    lines.append(turn.end("", answer, spent))
    match turn.struck:
        case "empty_choices":
            lines = [turn.line("", done=True, done_reason="load")]
        case "error":
            lines = [lines[0], {"error": _FAILURE}]
        case "cut" | "reset":
            lines = lines[: len(lines) // 2]
    writes = [msgspec.json.encode(line) + b"\n" for line in lines]
    finish = turn.struck != "reset"
    response = await deliver_stream(
        http,
        writes,
        headers={"content-type": "application/x-ndjson"},
        first_s=took_s * _FIRST_SHARE,
        step_s=took_s * (1 - _FIRST_SHARE) / max(1, len(writes) - 1),
        finish=finish,
    )
    if not finish:
        hang_up(http)
    return response


async def _plain(http: web.Request, turn: _Turn, answer: Answer, spent: Mapping[str, int]) -> web.StreamResponse:
    match turn.struck:
        case "error":
            return _error(_FAILURE, status=200)
        case "empty_choices":
            return _json(turn.line("", done=True, done_reason="load"))
        case "cut" | "reset":
            body = msgspec.json.encode(turn.end(answer.text, answer, spent))
            return await deliver_half(http, body, headers={"content-type": "application/json"})
        case _:
            return _json(turn.end(answer.text, answer, spent))


def _json(body: Mapping[str, Any], *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def _error(text: str, *, status: int) -> web.Response:
    return _json({"error": text}, status=status)


def _stamp() -> str:
    return datetime.now(UTC).isoformat()


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
