"""The premium side over HTTP: OpenAI's chat completions and model list."""

import asyncio
import time
from collections.abc import Mapping, Sequence

import msgspec
from aiohttp import web

from pipeline.sandbox.account import Charge
from pipeline.sandbox.answers import Answer
from pipeline.sandbox.bodies import ChatBody
from pipeline.sandbox.calls import Call
from pipeline.sandbox.delivery import deliver_half, deliver_stream, hang, hang_up, html_page, phrase
from pipeline.sandbox.faults import Fault
from pipeline.sandbox.headers import rate_headers, retry_headers
from pipeline.sandbox.limits import costs_of
from pipeline.sandbox.openai_replies import (
    Chunks,
    Usage,
    completion_body,
    encode,
    error_body,
    refusal_body,
)
from pipeline.sandbox.state import State
from pipeline.sandbox.tokens import prompt_tokens

_INVALID = "invalid_request_error"
# Clients tell some meanings of one status apart by the text.
_WORDS = {
    "insufficient_quota": "You exceeded your current quota, please check your plan and billing details.",
    "invalid_api_key": "Incorrect API key provided.",
}
_FAILURE = error_body("The server had an error while answering.", kind="server_error")


class _Turn(msgspec.Struct, frozen=True):
    """An admitted call and what will strike it."""

    body: ChatBody
    prompt_count: int
    answers: list[Answer]
    headers: dict[str, str]
    fault: Fault | None
    pieces: int

    @property
    def struck(self) -> str | None:
        return self.fault.name if self.fault else None

    def usage(self, said: Sequence[Answer]) -> Usage:
        return Usage.of(self.prompt_count, said)

    @property
    def reply_id(self) -> str:
        return f"chatcmpl-{self.headers['x-request-id'][-12:]}"


class OpenAIWire:
    """Handlers over one state. A call is judged and charged the moment its body is read, before anything else."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._decoder = msgspec.json.Decoder(ChatBody)
        self._keys = {f"Bearer {key}" for key in state.settings.api_keys}

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/chat/completions", self.chat), web.get("/v1/models", self.models)]

    async def models(self, http: web.Request) -> web.Response:
        """The one model of the settings."""
        if not self._known(http):
            return self._stranger({})
        card = {"id": self._state.settings.model, "object": "model", "created": 0, "owned_by": "sandbox"}
        return _json(encode({"object": "list", "data": [card]}))

    async def chat(self, http: web.Request) -> web.StreamResponse:
        """Answer one call, plain or streamed."""
        raw = await http.read()
        state = self._state
        now = state.clock()
        call = state.calls.open("premium", now)
        headers = {"x-request-id": f"req_{call.seq:032x}", "openai-processing-ms": "1"}
        try:
            response = await self._judged(http, raw, call, now, headers)
            call.status = call.status or response.status
            return response
        finally:
            # Cancelled, or the write failed: the caller hung up. Otherwise its fate is known by now.
            state.calls.close(call, "gone")

    async def _judged(
        self, http: web.Request, raw: bytes, call: Call, now: float, headers: dict[str, str]
    ) -> web.StreamResponse:
        state = self._state
        if not self._known(http):
            state.calls.close(call, "invalid")
            return self._stranger(headers)
        try:
            body = self._decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            state.calls.close(call, "invalid")
            return _json(error_body(str(error), kind=_INVALID), status=400, headers=headers)
        texts = body.texts()
        prompt = "\n".join(texts)
        prompt_count = prompt_tokens(texts)
        costs = costs_of(prompt_tokens=prompt_count, output_tokens=body.cap * body.choices)
        call.describe(prompt, last_text=texts[-1], tokens=costs["tpm"], stream=bool(body.stream))

        charge = state.account.charge(costs, now)
        headers |= rate_headers(state.settings.headers, charge.limits, now, unix_s=time.time())
        if not charge.verdict.admitted:
            state.calls.close(call, "refused")
            return self._refused(body.model, charge, headers)
        used = None
        try:
            fault = state.faults.take("premium", prompt)
            if fault and fault.name != "slow":
                # Before it strikes, so that a caller who gives up on a hanging call is booked as struck, not as gone.
                state.calls.close(call, "fault")
            seed = state.settings.seed
            answers = [Answer.to(prompt, cap=body.cap, seed=seed, index=index) for index in range(body.choices)]
            response = await self._respond(
                http, _Turn(body, prompt_count, answers, headers, fault, state.settings.pieces)
            )
            if fault is None or fault.name == "slow":
                used = costs_of(prompt_tokens=prompt_count, output_tokens=sum(answer.tokens for answer in answers))
        finally:
            state.account.end(charge, state.clock(), used=used)
        state.calls.close(call, "answered")
        return response

    async def _respond(self, http: web.Request, turn: _Turn) -> web.StreamResponse:
        """The admitted call's response, after its latency."""
        state, body, fault = self._state, turn.body, turn.fault
        first_s, rest_s = state.premium_times(max(answer.tokens for answer in turn.answers))
        if fault:
            first_s += fault.delay_s
            match fault.name:
                case "hang":
                    await hang()
                case "html":
                    return html_page()
                case "status":
                    kind = "server_error" if fault.status >= 500 else _INVALID
                    if fault.code and fault.status != 401:
                        kind = fault.code
                    words = _WORDS.get(fault.code or "") or phrase(fault.status)
                    problem = error_body(words, kind=kind, code=fault.code)
                    return _json(problem, status=fault.status, headers=turn.headers)
        if body.stream:
            return await _stream(http, turn, first_s, rest_s)
        await asyncio.sleep(first_s + rest_s)
        return await _plain(http, turn)

    def _refused(self, model: str, charge: Charge, headers: Mapping[str, str]) -> web.Response:
        verdict = charge.verdict
        requested = charge.costs[verdict.short or "rpm"]
        body = refusal_body(model, charge.limits, verdict, requested=requested, now=charge.at_s)
        return _json(body, status=429, headers={**headers, **retry_headers(self._state.settings.headers, verdict)})

    def _known(self, http: web.Request) -> bool:
        return not self._keys or http.headers.get("authorization") in self._keys

    def _stranger(self, headers: Mapping[str, str]) -> web.Response:
        body = error_body(_WORDS["invalid_api_key"], kind=_INVALID, code="invalid_api_key")
        return _json(body, status=401, headers=headers)


async def _stream(http: web.Request, turn: _Turn, first_s: float, rest_s: float) -> web.StreamResponse:
    answers = turn.answers
    usage = turn.usage(answers) if turn.body.include_usage else None
    chunks = Chunks(turn.reply_id, int(time.time()), turn.body.model, usage)
    match turn.struck:
        case "empty_choices":
            writes = chunks.empty()
        case "error":
            writes = chunks.failing(_FAILURE)
        case "cut" | "reset":
            writes = chunks.whole(answers, turn.pieces)
            writes = writes[: len(writes) // 2]
        case _:
            writes = chunks.whole(answers, turn.pieces)
    headers = {**turn.headers, "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
    step_s = rest_s / max(1, len(writes) - 1)
    finish = turn.struck != "reset"
    response = await deliver_stream(http, writes, headers=headers, first_s=first_s, step_s=step_s, finish=finish)
    if not finish:
        hang_up(http)
    return response


async def _plain(http: web.Request, turn: _Turn) -> web.StreamResponse:
    if turn.struck == "error":
        return _json(_FAILURE, headers=turn.headers)
    said = [] if turn.struck == "empty_choices" else turn.answers
    body = completion_body(turn.reply_id, int(time.time()), turn.body.model, said, turn.usage(said))
    if turn.struck in ("cut", "reset"):
        return await deliver_half(http, body, headers={**turn.headers, "content-type": "application/json"})
    return _json(body, headers=turn.headers)


def _json(body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")
