"""The provider's count of prompt tokens. Pure.

A judge that counts higher than the engine's real tokenizer would report 429s that no real provider sends; so this one
counts low on purpose. It counts the pieces that every byte-pair tokenizer of this family splits a text into before it
starts merging: words, groups of up to three digits, runs of punctuation. Each is at least one token, and for English
nearly always exactly one. Scripts without spaces and emoji are dense, there three characters count as one token;
o200k needs about two. Images, tools and names cost nothing here.
"""

import re
from collections.abc import Iterable

_PER_MESSAGE = 4
_PER_CALL = 3
_DENSE = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U0001f000-\U0001faff\U00020000-\U0003ffff"
_DENSE_CHARACTERS_PER_TOKEN = 3
_LETTER = rf"[^\W\d_{_DENSE}]"
_PIECES = re.compile(
    # A contraction ("don't") is one piece.
    rf"{_LETTER}+(?:['\u2019]{_LETTER}+)?"
    r"|[0-9]{1,3}"
    # A single sign is merged into the word that follows it: "(hello" is one piece, "...hello" two.
    rf"|[^\w\s{_DENSE}]{{2,}}|[^\w\s{_DENSE}](?!{_LETTER})"
)
_DENSE_RUNS = re.compile(f"[{_DENSE}]+")


def count_tokens(text: str) -> int:
    """Tokens of a text, rather too few than too many."""
    pieces = len(_PIECES.findall(text))
    if text.isascii():
        return pieces
    return pieces + sum(max(1, len(run) // _DENSE_CHARACTERS_PER_TOKEN) for run in _DENSE_RUNS.findall(text))


def prompt_tokens(texts: Iterable[str]) -> int:
    """Tokens of a prompt with one text for each of its messages."""
    return _PER_CALL + sum(_PER_MESSAGE + count_tokens(text) for text in texts)
