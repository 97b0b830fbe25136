"""Thousands of entries of workers that were killed: seen at a glance, put back to work, all finished."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cli import main
from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig

_ROOT = Path(__file__).resolve().parents[2]
_COUNT, _OWNERS = 5000, 10
_LEASE_S = 12.0


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """No worker yet, and a lease that is longer than the test."""
    with open_rig(lease_s=_LEASE_S) as opened:
        yield opened


def _strand(rig: Rig) -> None:
    """Entries in the hands of workers that don't exist any more. They ask for nothing: only the way counts here."""
    ingest = rig.keys.key("ingest")
    rig.redis.xgroup_create(ingest, "classify", id="0", mkstream=True)
    pipe = rig.redis.pipeline(transaction=False)
    for index in range(_COUNT):
        pipe.xadd(ingest, {"id": f"stuck-{index}", "body": "[]"})
    pipe.execute()
    for owner in range(_OWNERS):
        rig.redis.xreadgroup("classify", f"gone-{owner}:7:abc", {ingest: ">"}, count=_COUNT // _OWNERS)


def _on_a_terminal(rig: Rig, *words: str) -> tuple[int, str]:
    """A command as a person sees it: both outputs are a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pipeline.cli", *words, "--config", str(rig.config)]
    env = {**os.environ, "PYTHONPATH": str(_ROOT), "REDIS_URL": rig.store.url, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(command, env=env, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    seen = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # how Linux says that nobody writes any more
            break
        if not more:
            break
        seen += more
    os.close(ours)
    return process.wait(30), seen.decode(errors="replace")


def test_five_thousand_stuck_entries_are_put_back_to_work(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    """One table says whose they are, a dry run changes nothing, a bar shows the work; one worker finishes them all."""
    _strand(rig)
    here = ["--config", str(rig.config), "--redis", rig.store.url]

    assert main(["stuck", "--min-idle", "0", *here]) == 0
    table = capsys.readouterr()
    rows = [line for line in table.out.splitlines() if line.startswith("ingest")]
    assert len(rows) == _OWNERS
    assert all(re.search(r"gone-\d:7:abc +500 ", row) for row in rows)
    assert "5,000 entries in all" in table.err

    assert main(["replay", "--all", "--min-idle", "0", "--dry-run", *here]) == 0
    assert "would replay 5,000 entries" in capsys.readouterr().out
    assert main(["replay", "--owner", "gone-3:7:abc", "--min-idle", "0", "--json", *here]) == 0
    assert json.loads(capsys.readouterr().out)["replayed"] == 500
    owners = rig.redis.xpending(rig.keys.key("ingest"), "classify")["consumers"]
    assert {owner["name"].decode(): owner["pending"] for owner in owners}["operator"] == 500

    code, seen = _on_a_terminal(rig, "replay", "--all", "--min-idle", "0")
    assert code == 0
    assert "replaying" in seen
    assert "replayed 5,000 entries" in seen

    rig.run()
    results = rig.wait_for([f"stuck-{index}" for index in range(_COUNT)], timeout_s=30)
    assert {result.code for result in results} == {"invalid_request"}
    wait_until(lambda: rig.redis.xlen(rig.keys.key("ingest")) == 0, 10)
    rig.assert_clean()
