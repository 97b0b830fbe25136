"""`limits`: show what is in force, change it, put the file's back, end a pause."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import Cli, Hands

pytestmark = pytest.mark.anyio


@pytest.fixture
async def seeded(hands: Hands) -> Hands:
    """The limits that a worker put in place: rpm 500, tpm 30,000 of `primary`."""
    await hands.store.gate.seed()
    return hands


async def _budget(hands: Hands, **fields: Any) -> None:
    """Set fields of the budget as scripts would."""
    key = hands.store.keys.key("budget:primary")
    kept = msgspec.msgpack.decode(await hands.store.control.command("GET", key))
    for name, value in fields.items():
        limit, _, field = name.rpartition(".")
        (kept["limits"][limit] if limit else kept)[field] = value
    await hands.store.control.command("SET", key, msgspec.msgpack.encode(kept))


def _shown(cli: Cli) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(cli("limits", "show", "--json").stdout)
    return found


async def test_limits_are_changed_live(cli: Cli, seeded: Hands) -> None:
    """`set` says what was and what is, counts the version up, and leaves all else alone."""
    ended = cli("limits", "set", "primary", "rpm=400", "max_in_flight=8")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [
        "primary rpm: 500 -> 400",
        "primary max_in_flight: none -> 8",
        "in force for all workers now, version 2",
    ]
    shown = _shown(cli)
    assert shown["version"] == 2
    assert shown["deployments"]["primary"]["allowed"]["limits"] == {"rpm": 400, "tpm": 30_000}
    assert [(level["limit"], level["allowed"]) for level in shown["budgets"]] == [("rpm", 400), ("tpm", 30_000)]


async def test_a_change_wakes_what_waits(cli: Cli, seeded: Hands) -> None:
    """Requests that wait for the old limits are looked at again at once."""
    await seeded.store.control.command("HSET", seeded.store.keys.key("backlog:meta"), "r", "0 0 1 1 1 0 1 0 default")

    cli("limits", "set", "tpm=40000")

    assert [fields[b"why"] for fields in await seeded.fields("deferred")] == [b"limits"]
    await seeded.store.control.command("DEL", seeded.store.keys.key("backlog:meta"))


async def test_a_dry_run_changes_nothing(cli: Cli, seeded: Hands) -> None:
    """`--dry-run` says the same, and the limits stay."""
    ended = cli("limits", "set", "rpm=400", "--dry-run")

    assert (ended.returncode, ended.stdout) == (0, "primary rpm: 500 -> 400\ndry run: nothing was changed\n")
    assert _shown(cli)["version"] == 1


async def test_what_is_in_force_already_is_no_change(cli: Cli, seeded: Hands) -> None:
    """Setting a limit to what it is makes no new version."""
    ended = cli("limits", "set", "rpm=500")

    assert (ended.returncode, ended.stdout) == (0, "nothing to change: that is in force already, version 1\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["set"], "nothing to set"),
        (["set", "primary"], "nothing to set"),
        (["set", "primray", "rpm=4"], "did you mean 'primary'?"),
        (["set", "primary", "rmp=4"], "did you mean 'rpm'?"),
        (["set", "rpm=none", "tpm=none"], "last limit"),
        (["reset", "rpm=4"], "takes no values"),
        (["resume", "nobody"], "no deployment 'nobody'"),
        (["show", "primary"], "shows all deployments"),
        (["drop"], "invalid choice"),
    ],
)
async def test_mistakes_are_one_line(cli: Cli, seeded: Hands, words: list[str], said: str) -> None:
    """What can't be done is refused with 2, in one line that says what to type, and nothing is changed."""
    ended = cli("limits", *words)

    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert said in ended.stderr
    assert _shown(cli)["version"] == 1


@pytest.mark.parametrize("words", [["set", "rpm=4"], ["reset"], ["resume"]])
def test_without_limits_there_is_nothing_to_change(cli: Cli, words: list[str]) -> None:
    """Before the first worker there are no limits: 1, and what puts them there."""
    ended = cli("limits", *words)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "the first worker" in ended.stderr


async def test_reset_puts_the_file_in_force_again(cli: Cli, seeded: Hands) -> None:
    """After `reset` the configuration file counts again, and a second one changes nothing."""
    cli("limits", "set", "rpm=4", "tpm=none", "settlement=refund")

    ended, again = cli("limits", "reset"), cli("limits", "reset", "primary", "--json")

    assert ended.stdout.splitlines()[:3] == [
        "primary rpm: 4 -> 500",
        "primary tpm: none -> 30,000",
        "primary settlement: refund -> auto",
    ]
    assert json.loads(again.stdout) == {"version": 3, "dry_run": False, "changes": {"primary": {}}}


async def test_a_pause_is_shown_and_ended(cli: Cli, seeded: Hands) -> None:
    """A closed deployment says for how long and why, everywhere; `resume` opens it with its whole rate."""
    until = round((time.time() + 3000) * 1e6)
    await _budget(seeded, pause_until=until, why="key_refused", factor=0.49, in_flight=3)

    shown, status, check = cli("limits", "show"), cli("status"), cli("check", "--offline")
    resumed, again = cli("limits", "resume", "primary"), cli("limits", "resume")

    assert "primary is paused for 50 min (key_refused); 3 in flight, settlement auto: none" in shown.stdout
    assert "rate narrowed to 49%" in shown.stdout
    assert "primary is paused for 50 min (key_refused); 3 in flight" in status.stdout
    assert "pause: primary is paused for 50 min (key_refused) -> mend the cause" in check.stdout
    assert (resumed.returncode, resumed.stdout) == (0, "primary is open again, with its whole rate\n")
    assert (again.returncode, again.stdout) == (0, "nothing to resume: primary is open\n")
    assert "primary is open; 3 in flight, settlement auto: none\n" in cli("limits", "show").stdout


async def test_a_pause_that_waits_for_its_probe_is_shown(cli: Cli, seeded: Hands) -> None:
    """When its time is over, a pause still lasts until one call went well, and that is said."""
    await _budget(seeded, pause_until=round((time.time() - 5) * 1e6), why="quota_exhausted")

    assert "waiting for a probe to end its pause (quota_exhausted)" in cli("limits", "show").stdout


async def test_what_the_headers_say_is_shown(cli: Cli, seeded: Hands) -> None:
    """A lower limit that the provider states is shown with its cure, and proven refunds are named."""
    await _budget(seeded, **{"rpm.told": 300, "refunds": 1})

    shown = cli("limits", "show").stdout

    assert "the provider states 300, which is used -> tokenweir limits set primary rpm=300" in shown
    assert "settlement auto: refund, proven by the provider's headers" in shown
    assert _shown(cli)["standing"]["primary"]["settlement"].startswith("auto: refund")


async def test_check_names_limits_that_were_set_live(cli: Cli, seeded: Hands) -> None:
    """`check` warns when others than the file's limits are in force, and names the way back."""
    cli("limits", "set", "rpm=400")

    text = cli("check", "--offline").stdout

    assert "rpm 400 instead of 500" in text
    assert "tokenweir limits reset primary" in text
