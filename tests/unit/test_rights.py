"""The one list of rights is enough for every script, and the files that are handed out say the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path

import pytest

from lua import Script
from pipeline.store.rights import ROLES, acl_file, needed
from tests.script.test_declared_keys import SCRIPTS, code, reached
from tokenweir.keys import Keys

# Who uses which modules; the scripts that these load are run with that user's rights.
_MODULES = {
    "submitter": tuple(f"tokenweir.{name}" for name in ("client", "submission", "inbox", "reader")),
    "producer": tuple(f"tokenweir.{name}" for name in ("client", "submission", "cancellation", "inbox", "reader")),
    "limiter": ("tokenweir.shared_limits",),
    "worker": ("pipeline.store.gate", "pipeline.store.streams", "pipeline.store.rights"),
    "operator": tuple(f"pipeline.store.{name}" for name in ("views", "letters", "answers", "overview", "health")),
}
_CALL = re.compile(r"redis\.p?call\('([A-Z]+)'(?:, '([A-Z]+)')?")
_BOUND = {"<status>": "status:a", "<limiter>": "limiter:a", "<lane>": "ingest", "<target>": "gate:batch"}


def _scripts(role: str) -> list[Script]:
    found = [value for name in _MODULES[role] for value in vars(import_module(name)).values()]
    return [value for value in found if isinstance(value, Script)]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def test_every_script_belongs_to_somebody() -> None:
    """Whoever adds a script says who runs it, so that its user gets the rights."""
    assert {script.name for role in ROLES for script in _scripts(role)} == set(SCRIPTS)


@pytest.mark.parametrize("role", ROLES)
def test_every_command_of_every_script_is_allowed(role: str) -> None:
    """A user with exactly these rights meets no NOPERM in the middle of a decision."""
    allowed = {command for right in ROLES[role].rights for command in right.commands} | set(ROLES[role].keyless)

    for script in _scripts(role):
        for command, second in _CALL.findall(reached(code(script))):
            whole = f"{command} {second}" if command in ("XINFO", "XGROUP") else command
            assert whole in allowed, f"{role} runs {script.name}, which needs {whole}"


@pytest.mark.parametrize("role", ROLES)
def test_every_key_of_every_script_may_be_named(role: str) -> None:
    """A script may be run on all keys that it declares: one right must hold for all of them."""
    rights = [right.keys for right in ROLES[role].rights if "EVALSHA" in right.commands]

    for script in _scripts(role):
        named = [_BOUND.get(name, "responses" if name == "<source>" else name) for name in script.keys]
        named += ["budget:a"] if script.rest else []
        assert any(all(_matches(name, patterns) for name in named) for patterns in rights), (role, script.name, named)


def test_the_file_that_is_handed_out_is_this_list() -> None:
    """deploy/redis/users.acl is what the list says; write it anew with the command below."""
    file = Path(__file__).resolve().parents[2] / "deploy" / "redis" / "users.acl"

    assert file.read_text() == acl_file(), (
        "python -c \"from pipeline.store.rights import acl_file; print(acl_file(), end='')\" > deploy/redis/users.acl"
    )


def test_no_right_reaches_beyond_the_prefix() -> None:
    """Every key that a user may name begins with the prefix, and nobody but the administrator has a category."""
    lines = [line for line in acl_file().splitlines() if line.startswith("user tokenweir-")]

    assert len(lines) == len(ROLES)
    for line in lines:
        patterns = re.findall(r"~(\S+?)(?=[\s)])", line)
        assert patterns
        assert all(pattern.startswith("tokenweir:{*}:") for pattern in patterns)
        assert "+@" not in line


def test_the_questions_name_whole_commands() -> None:
    """What is asked for in a check is a command with its key, for people and for Redis."""
    asked = dict(needed("producer", Keys("main")))

    assert asked["XADD tokenweir:{main}:ingest"] == ["XADD", "tokenweir:{main}:ingest", "1", "1"]
    assert asked["XREAD tokenweir:{main}:responses"] == ["XREAD", "STREAMS", "tokenweir:{main}:responses", "0"]
    assert asked["HSET tokenweir:{main}:status:*"][:2] == ["HSET", "tokenweir:{main}:status:x"]
    assert all(words[0].isupper() for words in asked.values())
