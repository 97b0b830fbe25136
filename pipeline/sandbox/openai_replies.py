"""Bodies, headers and stream chunks of the OpenAI side, as bytes ready to send. Pure."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from pipeline.sandbox.answers import Answer
from pipeline.sandbox.durations import go_duration
from pipeline.sandbox.limits import TOKENS, Limits, Verdict
from pipeline.sandbox.settings import Dimension

_UNITS: dict[Dimension, str] = {
    "rpm": "requests per min (RPM)",
    "tpm": "tokens per min (TPM)",
    "itpm": "input tokens per min (ITPM)",
    "otpm": "output tokens per min (OTPM)",
    "rpd": "requests per day (RPD)",
    "tpd": "tokens per day (TPD)",
}

encode = msgspec.json.encode


class Usage(msgspec.Struct, frozen=True):
    """Tokens used; differs from the charge, which reserves the whole cap."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompt_tokens: int, answers: Sequence[Answer]) -> "Usage":
        completion = sum(answer.tokens for answer in answers)
        return cls(prompt_tokens, completion, prompt_tokens + completion)


def error_body(message: str, *, kind: str, code: str | None = None, param: str | None = None) -> bytes:
    """An error as OpenAI writes it; `kind` is its type."""
    return encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def refusal_body(model: str, limits: Limits, verdict: Verdict, *, requested: int, now: float) -> bytes:
    """The 429 of a call that the limits refused, too large ones included."""
    name = verdict.short or "rpm"
    budget = limits.budgets[name]
    if name == "max_in_flight":
        text = f"Your account org-sandbox reached its max concurrency: {budget.limit}. Wait until a call has ended."
        return error_body(text, kind="rate_limit_reached_error")
    where = f"for {model} in organization org-sandbox on {_UNITS[name]}: Limit {budget.limit}"
    if math.isinf(verdict.wait_s):
        text = f"Request too large {where}, Requested {requested}. The input or output tokens must be reduced."
    else:
        used = budget.limit - math.floor(budget.level(now))
        wait = go_duration(verdict.wait_s)
        text = f"Rate limit reached {where}, Used {used}, Requested {requested}. Please try again in {wait}."
    return error_body(text, kind="tokens" if name in TOKENS else "requests", code="rate_limit_exceeded")


def completion_body(reply_id: str, created: int, model: str, answers: Sequence[Answer], usage: Usage) -> bytes:
    """A plain answer; without `answers` one that has no choices."""
    choices: list[dict[str, Any]] = [
        {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None, "annotations": []},
            "logprobs": None,
            "finish_reason": answer.finish_reason,
        }
        for index, answer in enumerate(answers)
    ]
    return encode(
        {
            "id": reply_id,
            "object": "chat.completion",
            "created": created,
            "model": model,
            "choices": choices,
            "usage": usage,
            "service_tier": "default",
            "system_fingerprint": "fp_sandbox",
        }
    )


class Chunks:
    """Chunks of one stream; what they share is put into bytes once.

    With `usage` the stream ends in a chunk that has it and no choices, and all others say `"usage": null`.
    """

    def __init__(self, reply_id: str, created: int, model: str, usage: Usage | None) -> None:
        self._head = (
            f'data: {{"id":"{reply_id}","object":"chat.completion.chunk","created":{created},'
            f'"model":{encode(model).decode()},"service_tier":"default","system_fingerprint":"fp_sandbox","choices":['
        )
        self._usage = usage
        self._tail = '],"usage":null}\n\n' if usage else "]}\n\n"

    def _chunk(self, index: int, delta: str, finish: str = "null") -> str:
        return f'{self._head}{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":{finish}}}{self._tail}'

    def _opening(self, choices: int) -> str:
        role = '{"role":"assistant","content":"","refusal":null}'
        return "".join(self._chunk(index, role) for index in range(choices))

    def _closing(self, answers: Sequence[Answer]) -> str:
        text = "".join(self._chunk(index, "{}", f'"{answer.finish_reason}"') for index, answer in enumerate(answers))
        if self._usage:
            text += f'{self._head}],"usage":{encode(self._usage).decode()}}}\n\n'
        return text + "data: [DONE]\n\n"

    def whole(self, answers: Sequence[Answer], pieces: int) -> list[bytes]:
        """The writes of a good stream: roles with the first words, more words, in `pieces` at most, the end."""
        spoken = [answer.pieces(pieces) for answer in answers]
        writes = [
            "".join(
                # The words are plain ASCII, so they need no escaping.
                self._chunk(index, f'{{"content":"{words[number]}"}}')
                for index, words in enumerate(spoken)
                if number < len(words)
            )
            for number in range(max(map(len, spoken)))
        ]
        writes[0] = self._opening(len(answers)) + writes[0]
        return [write.encode() for write in (*writes, self._closing(answers))]

    def empty(self) -> list[bytes]:
        """A stream that ends well and says nothing."""
        return [f"{self._head}{self._tail}".encode(), self._closing([]).encode()]

    def failing(self, error: bytes) -> list[bytes]:
        """A stream that turns into an error after its first chunk."""
        return [self._opening(1).encode(), b"event: error\ndata: " + error + b"\n\n"]
