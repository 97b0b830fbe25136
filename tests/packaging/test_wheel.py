"""The wheel, built and installed into a place of its own, far from the sources, does what the checkout does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import running_server, server_kinds

ROOT = Path(__file__).parents[2]
PACKAGES = ("tokenweir", "pipeline", "stages", "lua")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout, built by the declared build backend."""
    out = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(words, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a fresh environment with the wheel; dependencies are taken from the running one."""
    home = tmp_path_factory.mktemp("elsewhere") / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    site = sysconfig.get_path("purelib", vars={"base": str(home)})
    # The line is read once, so an editable install among the dependencies doesn't bring the sources along.
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "REDIS_URL")}


def _run(bin_: Path, *words: str, cwd: Path) -> str:
    ended = subprocess.run(
        [str(bin_ / words[0]), *words[1:]],
        cwd=cwd,
        env=_clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    """No tests, no local files; every script is in it, and the licence."""
    names = zipfile.ZipFile(wheel).namelist()

    tops = {name.split("/")[0] for name in names}
    assert tops == {*PACKAGES, *(top for top in tops if top.endswith(".dist-info"))}
    assert {path.name for path in (ROOT / "lua").glob("*.lua")} <= {Path(name).name for name in names}
    assert any(name.endswith("/LICENSE") for name in names)


def test_everything_comes_from_the_wheel(elsewhere: Path, tmp_path: Path) -> None:
    """The installed copy is what runs, with the version that it says."""
    code = f"import {', '.join(PACKAGES)}; print(*[m.__file__ for m in ({', '.join(PACKAGES)},)], sep='\\n')"

    files = _run(elsewhere, "python", "-c", code, cwd=tmp_path).split()

    assert all(file.startswith(str(elsewhere.parent)) for file in files)
    assert _run(elsewhere, "tokenweir", "--version", cwd=tmp_path).startswith("tokenweir ")


@pytest.fixture
def sandbox(elsewhere: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The simulated providers, started by the installed command; yields their addresses."""
    words = [str(elsewhere / "tokenweir"), "sandbox", "--time-scale", "100"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=_clean_environment()) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)


def test_the_installed_command_answers_a_request(elsewhere: Path, tmp_path: Path, sandbox: dict[str, str]) -> None:
    """A worker, a provider and a request from the shell, all from the wheel: the answer is printed."""
    (tmp_path / "tokenweir.toml").write_text(
        f"""
        [[pools.main.deployments]]
        base_url = {json.dumps(sandbox["premium"])}
        api_key = "sandbox"
        rpm = 500
        tpm = 30000
        window_s = 6
        send_within_s = 0.5
        """
    )
    with running_server(server_kinds()[0]) as server:
        words = [str(elsewhere / "tokenweir"), "run", "--redis", server.tcp_url]
        with (tmp_path / "worker.log").open("w") as log:
            worker = subprocess.Popen(words, cwd=tmp_path, stderr=log, env=_clean_environment())
        try:
            ask = ("submit", "Why is the sky blue?", "--task", "analysis", "--wait", "40", "--redis", server.tcp_url)
            answer = _run(elsewhere, "tokenweir", *ask, cwd=tmp_path)
        finally:
            worker.send_signal(signal.SIGTERM)
            code = worker.wait(30)

    assert answer.strip()
    assert code == 0
    assert "sky" not in (tmp_path / "worker.log").read_text()
