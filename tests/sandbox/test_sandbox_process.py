"""The sandbox as a process: its line, its options, its ends."""

import argparse
import os
import select
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from pipeline.sandbox.arguments import add_arguments, arguments_for, settings_from
from pipeline.sandbox.process import SandboxFailed, open_sandbox, start_sandbox
from pipeline.sandbox.ready import Ready
from pipeline.sandbox.settings import SandboxSettings

_ROOT = Path(__file__).parents[2]
_SETTINGS = SandboxSettings(
    rpm=7, tpm=900, window_s=6, time_scale=10, enforcement="bucket/6", seed=5, api_keys=("--a b", "c"), edge_load_s=1.5,
    rpd=70, itpm=800, otpm=700, tpd=9000, max_in_flight=3, refund=True, headers="per-day-requests", foreign_share=0.25,
    foreign_tokens=40,
)  # fmt: skip
_STARTER = """
import sys
from pipeline.sandbox.process import start_sandbox
from pipeline.sandbox.settings import SandboxSettings
with start_sandbox(SandboxSettings()) as ready:
    print(ready.pid, flush=True)
    sys.stdin.read()
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    return parser


def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as response:
        return bytes(response.read())


def test_the_command_line_states_any_settings() -> None:
    """Settings survive the way over a command line, and no options mean the defaults."""
    assert settings_from(_parser().parse_args(arguments_for(_SETTINGS))) == _SETTINGS
    assert settings_from(_parser().parse_args([])) == SandboxSettings()
    assert settings_from(_parser().parse_args(["--refund"])) == SandboxSettings(refund=True)


@pytest.mark.parametrize(
    "option", ["--rpm=0", "--rpm=x", "--enforcement=none", "--headers=x", "--refund=x", "--port=70000", "--window-s=-1"]
)
def test_wrong_options_are_refused(option: str) -> None:
    """An impossible value is named before anything listens."""
    with pytest.raises(argparse.ArgumentError, match=option.partition("=")[0]):
        _parser().parse_args([option])


def test_impossible_latencies_are_refused() -> None:
    """Values that only together are impossible too, with exit code 2."""
    ended = subprocess.run(
        [sys.executable, "-m", "pipeline.sandbox", "--ttft-mean-s=2"], capture_output=True, cwd=_ROOT, check=False
    )

    assert (ended.returncode, b"no lognormal" in ended.stderr) == (2, True)


def test_headers_of_a_missing_day_limit_are_refused() -> None:
    """Headers that describe the day need a limit of the day."""
    with pytest.raises(ValueError, match="set rpd"):
        settings_from(_parser().parse_args(["--headers=per-day-requests"]))


def test_a_started_sandbox_serves_and_ends() -> None:
    """The ready line tells where both sides listen and how fast they are; after the block the process is gone."""
    with start_sandbox(SandboxSettings(time_scale=10)) as ready:
        assert b'"calls":0' in _fetch(f"{ready.control}/ledger")
        assert b"gpt-4o" in _fetch(f"{ready.premium}/models")
        assert b"llama3" in _fetch(f"{ready.edge}/api/tags")
        assert ready.latency.time_scale == 10
        assert ready.latency.premium_ttft.mean_s == pytest.approx(0.9, rel=0.02)

    with pytest.raises(ProcessLookupError):
        os.kill(ready.pid, 0)


@pytest.mark.anyio
async def test_a_sandbox_opens_beside_an_event_loop() -> None:
    """The asynchronous form gives the same."""
    async with open_sandbox(SandboxSettings()) as ready:
        assert isinstance(ready, Ready)


def test_a_sandbox_that_cant_start_says_so() -> None:
    """A taken port is an error within the start time, not a wait."""
    with start_sandbox(SandboxSettings()) as ready:
        taken = int(ready.edge.rpartition(":")[2])

        with pytest.raises(SandboxFailed, match="code 1"), start_sandbox(SandboxSettings(edge_port=taken)):
            pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(number: signal.Signals) -> None:
    """Either signal ends it with code 0 and not a word on stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.sandbox"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=_ROOT
    )
    assert process.stdout is not None
    process.stdout.readline()

    process.send_signal(number)
    _, words = process.communicate(timeout=10)

    assert (process.returncode, words) == (0, b"")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's parent-death signal is Linux's")
def test_it_dies_with_its_parent() -> None:
    """A starter killed by kill -9 leaves no sandbox behind."""
    starter = subprocess.Popen(
        [sys.executable, "-c", _STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT
    )
    assert starter.stdout is not None
    watched = os.pidfd_open(int(starter.stdout.readline()))

    starter.kill()
    starter.communicate()

    assert select.select([watched], [], [], 10)[0], "the sandbox is still running"
    os.close(watched)
