"""An environment for each peer, made at first use outside the repository, with pinned packages from PyPI."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Final

_CLIENT: Final = ("redis==7.4.1", "hiredis==3.5.0", "uvloop==0.23.0")
# litellm comes without its dependencies: only the script in its source is used, and nothing of it is imported.
_WITHOUT_DEPENDENCIES: Final = ("litellm",)
PINS: Final[dict[str, tuple[str, ...]]] = {
    "limits": ("limits==5.8.0", *_CLIENT),
    "throttled": ("throttled-py==3.5.0", *_CLIENT),
    "pyrate": ("pyrate-limiter==4.5.1", *_CLIENT),
    "litellm": ("litellm==1.80.0", *_CLIENT),
}


class NoEnvironment(Exception):
    """A peer's environment couldn't be made; the message is for the table."""


def python_of(peer: str, *, say: Callable[[str], None]) -> Path:
    """The interpreter of the peer's environment, which is made if it isn't there.

    Raises:
        NoEnvironment: with the last line that pip said.
    """
    pins = PINS[peer]
    mark = hashlib.sha256(" ".join((*pins, sys.version)).encode()).hexdigest()[:8]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tokenweir-bench", f"{peer}-{mark}")
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    say(f"making an environment for {peer}: {' '.join(pins)}")
    try:
        venv.create(folder, with_pip=True, clear=True)
        words = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--only-binary",
            ":all:",
        ]
        words += ["--no-deps"] if peer in _WITHOUT_DEPENDENCIES else []
        done = subprocess.run([*words, *pins], capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise NoEnvironment(next(reversed(done.stderr.strip().splitlines()), f"pip ended with {done.returncode}"))
    except (OSError, subprocess.SubprocessError, NoEnvironment) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise NoEnvironment(f"no environment: {error}") from error
    (folder / "complete").touch()
    return python
