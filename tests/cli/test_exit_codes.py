"""Exit codes and the one line on stderr, whatever goes wrong."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import tokenweir
from tests.cli.conftest import Cli, Hands

pytestmark = pytest.mark.anyio

_NOT_UNDERSTOOD = [
    ["sumbit", "x"],
    ["submit"],
    ["submit", "x", "-f", "y"],
    ["submit", "x", "--wait", "soon"],
    ["submit", "x", "--json"],
    ["submit", "-f", "missing.jsonl"],
    ["submit", "x", "--redis", "redsi://somewhere"],
    ["submit", "x", "--redis", "embedded:some/where"],
    ["results", "--after", "yesterday"],
    ["results", "--count", "0"],
    ["cancel"],
    ["cancel", "two words"],
    ["status", "--pool", "nobody"],
    ["status", "--config", "missing.toml"],
    ["replay"],
    ["replay", "--stage", "nowhere", "--all"],
    ["dead", "show"],
    ["dead", "drop", "--all"],
    ["dead", "drop", "*"],
    ["drain", "--timeout", "0"],
    ["sandbox", "--rpm", "many"],
    ["sandbox", "--ttft-mean-s", "3", "--ttft-p99-s", "1"],
]
_TALK_TO_REDIS = [
    ["submit", "x"],
    ["submit", "x", "--stream"],
    ["results", "--no-follow"],
    ["status"],
    ["status", "x"],
    ["cancel", "x"],
    ["stuck"],
    ["replay", "--all"],
    ["dead", "list"],
    ["limits", "show"],
    ["drain"],
    ["drain", "--open"],
]


@pytest.mark.parametrize("words", _NOT_UNDERSTOOD, ids=" ".join)
def test_usage_ends_with_2(offline: Cli, words: list[str]) -> None:
    """What can't be understood ends with 2 and one line that says what to do."""
    ended = offline(*words)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("tokenweir: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("words", _TALK_TO_REDIS, ids=" ".join)
def test_unreachable_redis_ends_with_3(offline: Cli, words: list[str]) -> None:
    """Without Redis every command ends with 3 and one line that names a cure."""
    ended = offline(*words)

    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.startswith("tokenweir: ")
    assert "--redis" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_mistyped_key_is_named_with_the_nearest(offline: Cli) -> None:
    """A typo in the configuration ends with 2 and the key that was probably meant."""
    Path(offline.folder, "tokenweir.toml").write_text("[pools.main]\nlease_z = 3\n")

    ended = offline("status")

    assert ended.returncode == 2
    assert "lease_s" in ended.stderr


def test_a_mistyped_command_is_named_with_the_nearest(offline: Cli) -> None:
    """A typo in a command brings the one that was probably meant."""
    assert "did you mean 'status'" in offline("statsu").stderr


def test_the_password_is_never_shown(offline: Cli) -> None:
    """A password in the URL stays out of everything that is printed."""
    ended = offline("check", "--offline", "--redis", "redis://user:geheim@127.0.0.1:9/0")

    assert ended.returncode == 3
    assert "geheim" not in ended.stdout + ended.stderr


def test_version(offline: Cli) -> None:
    """`--version` says the version, and nothing else."""
    assert offline("--version").stdout == f"tokenweir {tokenweir.__version__}\n"


@pytest.mark.leaves_keys("requests that nobody finishes")
async def test_ctrl_c_is_quiet(cli: Cli, hands: Hands) -> None:
    """Ctrl-C ends a command that follows, without a word."""
    cli("submit", "x")
    await hands.finish("ingest")
    process = cli.start("results", "--group", "g")
    assert process.stdout is not None
    process.stdout.readline()

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)

    assert (process.returncode, out, err) == (130, "", "")


async def test_a_reader_that_leaves_is_no_error(cli: Cli, hands: Hands) -> None:
    """`tokenweir results | head -1` ends quietly when `head` has had enough."""
    cli("submit", "-", given="x")
    await hands.finish("ingest", content="long " * 40_000)
    process = cli.start("results", "--no-follow")
    assert process.stdout is not None
    process.stdout.close()

    _, err = process.communicate(timeout=20)

    assert process.returncode == 141
    assert err == ""
