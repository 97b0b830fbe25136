"""Bodies of calls as the two wire formats state them; fields that the sandbox ignores are accepted unseen. Pure."""

from typing import Annotated, Any

import msgspec

_DEFAULT_CAP = 512
_EDGE_DEFAULT_CAP = 128
_EDGE_DEFAULT_CONTEXT = 4096

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class Part(msgspec.Struct):
    """A part of a content list; only texts count."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct):
    """One message of a chat, in either format."""

    role: str
    content: str | list[Part] | None = None

    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content or ""


class StreamOptions(msgspec.Struct):
    """What a stream shall contain."""

    include_usage: bool | None = None


class ChatBody(msgspec.Struct):
    """`POST /v1/chat/completions`."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    max_tokens: AtLeastOne | None = None
    max_completion_tokens: AtLeastOne | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def texts(self) -> list[str]:
        return [message.text() for message in self.messages]

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def cap(self) -> int:
        """Most tokens of one choice: the larger of both fields, as both may be present."""
        return max(self.max_tokens or 0, self.max_completion_tokens or 0) or _DEFAULT_CAP

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class EdgeOptions(msgspec.Struct):
    """`options` of an Ollama call."""

    num_predict: int | None = None
    num_ctx: AtLeastOne | None = None


class EdgeBody(msgspec.Struct):
    """`POST /api/chat` and `/api/generate`: the first has `messages`, the second `prompt`."""

    model: str
    messages: list[ChatMessage] = []
    prompt: str | None = None
    system: str | None = None
    stream: bool | None = None
    options: EdgeOptions | None = None
    keep_alive: Any = None

    def texts(self) -> list[str]:
        return [message.text() for message in self.messages] + [text for text in (self.system, self.prompt) if text]

    @property
    def cap(self) -> int:
        """Most tokens of the answer; absent or negative means that the server decides."""
        asked = self.options.num_predict if self.options else None
        return asked if asked and asked > 0 else _EDGE_DEFAULT_CAP

    @property
    def context(self) -> int:
        """Prompts are cut to this silently."""
        return (self.options.num_ctx if self.options else None) or _EDGE_DEFAULT_CONTEXT

    @property
    def unloads(self) -> bool:
        return self.keep_alive in (0, "0", "0s")
