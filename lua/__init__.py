"""Loads the Lua scripts: one file a decision, shared parts included.

A script's header is its contract, and two of its lines are read here:

* `-- KEYS  limits slots <source> *` names the keys in order. Plain names are key names of the pool,
  `<name>` is a key that the caller binds, `*` takes any number of further keys. In the script they are
  `K.limits`, `K.source` and `REST[i].name` / `REST[i].key`; `ROOT` is the pool's prefix. Behind them a Cluster
  is told which statuses the script may touch (tokenweir.connection); the script knows those by their ids.
* `-- include budget` puts `part_budget.lua` in its place.

Nothing here talks to Redis.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_KEYS = re.compile(r"^-- KEYS +(.+)$", re.MULTILINE)
_INCLUDE = re.compile(r"^-- include (\w+)$", re.MULTILINE)


class Script(NamedTuple):
    """A script ready to send: its text, its SHA-1 for EVALSHA, and the key names it declares in order."""

    name: str
    text: str
    sha: str
    keys: tuple[str, ...]
    rest: bool


@cache
def _source(name: str) -> str:
    return (files(__package__) / f"{name}.lua").read_text("utf-8")


def load(name: str, *, parts: Mapping[str, str] | None = None) -> Script:
    """The script `<name>.lua` with its parts in place.

    Args:
        parts: other texts for some parts; the tests put a clock of their own in place of `clock`.
    """
    given = parts or {}
    text = _INCLUDE.sub(lambda found: given.get(found[1]) or _source(f"part_{found[1]}"), _source(name))
    header = _KEYS.search(text)
    declared = header[1].split() if header else []
    names = tuple(declared[:-1] if declared[-1:] == ["*"] else declared)
    first, _, body = text.partition("\n")
    text = f"{first}\n{_prologue(names)}\n{body}" if declared else text
    return Script(
        name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), names, names != tuple(declared)
    )


def part(name: str) -> str:
    """The text of a shared part, for tests that run it alone."""
    return _source(f"part_{name}")


def _prologue(names: tuple[str, ...]) -> str:
    """Names for the keys, on one line."""
    table = ", ".join(f"['{name.strip('<>')}'] = KEYS[{index}]" for index, name in enumerate(names, 1))
    return (
        f"local K = {{{table}}}; local ROOT = string.match(KEYS[1], '^.-}}:'); local REST = {{}}; "
        f"for i = {len(names) + 1}, #KEYS do local name = string.sub(KEYS[i], #ROOT + 1) "
        f"if string.find(name, 'status:', 1, true) == 1 then break end; "
        f"REST[#REST + 1] = {{name = name, key = KEYS[i]}} end"
    )
