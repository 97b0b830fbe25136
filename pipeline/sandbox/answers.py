"""What the simulated models say: words fixed by the prompt, so that a test can tell whose answer it holds. Pure.

The same prompt gets the same answer, on either side and at any time; only its length also depends on the cap and the
seed. A word is a token.
"""

import hashlib
from itertools import pairwise
from random import Random
from typing import Self
from zlib import crc32

import msgspec

_VOCABULARY = """
    able air all area art back bank base bird blue boat book box bread bring build call card case chair city class
    clear cloud cold cost day deep door earth east end farm field fire fish food form garden gate glass green hand
    hill home house iron lake leaf light line map mark moon mountain night north paper path rain river road rock
"""
_WORDS = _VOCABULARY.split()
_OPENING = 6  # words taken from the prompt's hash: 36 bits, so two prompts hardly ever share an answer
_LOOP = Random(0).choices(_WORDS, k=4096)
_SHORTEST = 0.4  # of the cap


class Answer(msgspec.Struct, frozen=True):
    """One choice: `words` joined by spaces are its text."""

    words: list[str]
    finish_reason: str

    @classmethod
    def to(cls, prompt: str, *, cap: int, seed: int, index: int = 0) -> Self:
        """The answer number `index` to `prompt`: between 40 % and 100 % of `cap` tokens long."""
        digest = hashlib.sha256(prompt.encode("utf-8", "surrogatepass") + bytes([index])).digest()
        share = crc32(digest, seed & 0xFFFFFFFF) / 0xFFFFFFFF
        length = max(1, round(cap * (_SHORTEST + (1 - _SHORTEST) * share)))
        opening = [_WORDS[byte % len(_WORDS)] for byte in digest[:_OPENING]]
        start = int.from_bytes(digest[_OPENING : _OPENING + 2], "big") % len(_LOOP)
        end = start + max(0, length - _OPENING)
        loops = _LOOP * (end // len(_LOOP) + 1) if end > len(_LOOP) else _LOOP
        return cls(words=opening[:length] + loops[start:end], finish_reason="length" if length >= cap else "stop")

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def tokens(self) -> int:
        return len(self.words)

    def pieces(self, most: int) -> list[str]:
        """The text cut into at most `most` parts of nearly equal length; joined they are the text again."""
        count = min(most, len(self.words))
        cuts = [len(self.words) * number // count for number in range(count + 1)]
        parts = [" ".join(self.words[low:high]) for low, high in pairwise(cuts)]
        return parts[:1] + [" " + part for part in parts[1:]]
