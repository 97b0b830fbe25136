"""The demo as a newcomer starts it: short, whole, and ended by Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_COMMAND = (sys.executable, "-m", "pipeline.demo", "--json")


@pytest.mark.slow
def test_the_short_demo_keeps_its_promises(tmp_path: Path) -> None:
    """No 429, nothing lost, nothing twice, the budget used, and the baseline refused, in one run of three minutes."""
    picture = tmp_path / "calls.svg"

    ended = subprocess.run(
        [*_COMMAND, "--minutes", "3", "--plot", str(picture)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout.splitlines()[-1])
    assert (said["provider_429"], said["lost"], said["duplicates"]) == (0, 0, 0)
    assert said["answered"] == said["requests"]
    assert said["used_ratio"] >= 0.9
    assert said["baseline"]["provider_429"] > 0
    assert picture.read_text().startswith("<svg")
    assert list(tmp_path.iterdir()) == [picture]


@pytest.mark.slow
@pytest.mark.parametrize("begun", ["without tokenweir", "Starting Redis"], ids=["first-run", "between"])
def test_ctrl_c_ends_everything(begun: str, tmp_path: Path) -> None:
    """Exit code 130, no traceback, no process and no folder left behind."""
    process = subprocess.Popen(
        [*_COMMAND, "--minutes", "3"],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stderr is not None
    said = ""
    while begun not in said:
        said = process.stderr.readline()
        assert said, "it ended by itself"

    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=30)

    assert (process.returncode, "Traceback" in words) == (130, False)
    assert list(tmp_path.iterdir()) == []
    assert not _naming(str(tmp_path))  # Redis and workers
    assert not _naming(f"--with-parent={process.pid}")  # sandboxes


def _naming(text: str) -> list[str]:
    """Command lines of processes that were started with `text` in them."""
    lines = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if text in line:
            lines.append(line)
    return lines
