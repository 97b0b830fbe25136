"""Every key a script touches is declared, so that a cluster can route it and rights can name it."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from lua import Script, load

SCRIPTS = sorted(
    entry.name.removesuffix(".lua")
    for entry in files("lua").iterdir()
    if entry.name.endswith(".lua") and not entry.name.startswith("part_")
)
# Keys that hold a request's own id or an inbox's name: made inside, in the pool's own slot.
BUILT_INSIDE = {"status:", "reply:", "inbox:"}
_ONE_LINE = re.compile(r"^(?:local )?function ([\w.]+)\([^\n]*\) [^\n]* end$", re.M)
_LINES = re.compile(r"^(?:local )?function ([\w.]+)\([^\n]*\)\n.*?^end$", re.M | re.S)
_NAME = re.compile(r"\bK\.(\w+)|\bK\['([^']+)'\]")
_BUILT = re.compile(r"\bK\['([^']+)' \.\.")
_ROOT = re.compile(r"ROOT \.\. '([^']+)'")


def code(script: Script) -> str:
    """The script without its comments and the line that names its keys."""
    lines = script.text.split("\n")
    return "\n".join(re.sub(r"--.*$", "", line) for line in lines[:1] + lines[2:])


def reached(text: str) -> str:
    """The text that runs: what stands outside of functions, and the functions that are called from there."""
    bodies = {found[1]: found[0] for found in _ONE_LINE.finditer(text)}
    text = _ONE_LINE.sub("", text)
    bodies |= {found[1]: found[0] for found in _LINES.finditer(text)}
    runs, grown = _LINES.sub("", text), True
    while grown:
        called = [name for name in bodies if re.search(rf"(?<![\w.]){re.escape(name)}\(", runs)]
        grown = bool(called)
        runs += "".join(bodies.pop(name) for name in called)
    return runs


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_key_is_declared_and_every_declared_key_is_used(name: str) -> None:
    """A script names all its keys when it is called, and none that it doesn't need."""
    script = load(name)
    declared = [key.strip("<>") for key in script.keys]
    runs = reached(code(script))
    used = {first or second for first, second in _NAME.findall(runs)}
    prefixes = set(_BUILT.findall(runs))
    by_name = {key for key in declared if f"'{key}'" in runs}  # taken from a list of names, in a loop
    by_prefix = {key for key in declared for prefix in prefixes if key.startswith(prefix)}

    assert used - set(declared) == set()
    assert {prefix for prefix in prefixes if not any(key.startswith(prefix) for key in declared)} == set()
    # The first key also tells the pool's prefix, by which `ROOT` and the names behind `*` are known.
    assert set(declared[1:]) - used - by_name - by_prefix == set()


@pytest.mark.parametrize("name", SCRIPTS)
def test_keys_built_inside_are_of_the_three_kinds_that_may(name: str) -> None:
    """Only names that hold a request's id or an inbox's name are made inside a script."""
    assert set(_ROOT.findall(code(load(name)))) <= BUILT_INSIDE


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_begin_with_their_interpreter_and_read_one_clock(name: str) -> None:
    """Each is a `#!lua` script, so that Redis holds it to its declared keys, and time comes from Redis alone."""
    script = load(name)

    assert script.text.startswith("#!lua")
    assert not re.search(r"\bos\.(time|clock)|math\.random", script.text)
    assert len(re.findall(r"'TIME'", script.text)) <= 1
