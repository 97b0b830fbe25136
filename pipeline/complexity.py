"""Which requests the edge model may answer, and which it can serve. Pure.

Unsure means complex: a complex request waits a little longer, a simple one that wasn't simple gets a poor answer.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pipeline.config import Edge

# A question of support or routing takes some 10 to 30 tokens, its frame 7.
_SHORT_TOKENS: Final = 60
_EDGE_ROLES: Final = frozenset(("system", "user", "assistant"))
_EDGE_FORMS: Final = ("text", "json_object")
# What a local model can't do, or does otherwise than the caller expects.
_PREMIUM_ONLY: Final = (
    "tools",
    "functions",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "audio",
    "prediction",
    "web_search_options",
)
# English only; a question in another language needs a task, or counts as complex.
_OPENING = re.compile(
    r"(?:(?:hi|hello|hey|please)[ ,]+)*"
    r"(?:where(?:'s|s)?|when|which|who|what(?:'s|s| is| are| time)|how (?:much|many|long|do i|can i)"
    r"|is|are|can (?:i|you)|do (?:i|you)|does|did|has|have|i(?: want| need|'d like| would like)|cancel|track)\b",
    re.IGNORECASE,
)
_DEMANDING = re.compile(
    r"\b(?:why|explain\w*|analy[sz]\w*|write|draft|compose|rewrite|summar\w+|translat\w+|compar\w+|differ\w*|code"
    r"|function|script|program\w*|debug|prove|deriv\w+|calculat\w+|solve|plan|design|essay|story|poem|email|letter"
    r"|list|steps?|detail\w*|reason\w*|evaluat\w+|review|argu\w+|law|legal\w*|contract|medic\w+)\b"
    r"|[`{}<>|\\\n\r]|https?:",
    re.IGNORECASE,
)


def is_simple(chat: dict[str, Any], *, task: str, stated: str, prompt_tokens: int, edge: Edge | None) -> bool:
    """Whether the edge model may answer: what the producer stated, else its task, else the text itself.

    Without a task only a short plain question is simple: one line, no earlier turns, a usual opening, no word
    that asks for thinking or writing.
    """
    if edge is None:
        return False
    if stated:
        return stated == "simple"
    if task:
        return task in edge.tasks
    question = _only_question(chat["messages"]) if prompt_tokens <= _SHORT_TOKENS else None
    return question is not None and bool(_OPENING.match(question)) and not _DEMANDING.search(question)


def edge_serves(chat: dict[str, Any], *, n: int, tokens: int, edge: Edge | None) -> bool:
    """Whether the edge can serve it at all: plain text, one choice, and within its context of `edge.num_ctx`."""
    if edge is None or n != 1 or tokens > edge.num_ctx or any(chat.get(name) for name in _PREMIUM_ONLY):
        return False
    form, modalities = chat.get("response_format"), chat.get("modalities")
    if form is not None and (type(form) is not dict or form.get("type") not in _EDGE_FORMS):
        return False
    if modalities is not None and modalities != ["text"]:
        return False
    return all(_plain(message) for message in chat["messages"])


def _plain(message: dict[str, Any]) -> bool:
    if message["role"] not in _EDGE_ROLES or message.get("tool_calls") or message.get("function_call"):
        return False
    content = message.get("content")
    if type(content) is list:
        return all(type(part) is dict and part.get("type") == "text" for part in content)
    return type(content) is str


def _only_question(messages: list[dict[str, Any]]) -> str | None:
    """The text of the one turn there is, behind an optional system message."""
    turns = messages[1:] if messages[0]["role"] in ("system", "developer") else messages
    if len(turns) != 1 or turns[0]["role"] != "user":
        return None
    content = turns[0].get("content")
    return content.strip() if type(content) is str else None
