"""Child processes of the demo: each in a session of its own, ended by its pid, never left behind."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.config import environment

_ROOT = Path(__file__).parents[2]  # holds this very `pipeline` package
_TAIL_LINES = 12
# A provider has machines of its own: on these cores its simulation goes first, or its counting would lag behind.
_NICER = 5


class DemoFailed(RuntimeError):
    """The demo can't be played; the text says why, with a child's last words."""


async def start_child(module: str, *options: str, said: Path, pipes: bool = False) -> asyncio.subprocess.Process:
    """Start `python -m module` of this project with this interpreter.

    Ctrl-C is for the demo alone, which then ends its children in order.

    Args:
        said: file for what it says on stderr, and on stdout without `pipes`.
        pipes: open its stdin and stdout.
    """
    env = environment()
    paths = os.pathsep.join(filter(None, [str(_ROOT), env.get("PYTHONPATH")]))
    pipe = asyncio.subprocess.PIPE
    with said.open("ab") as words:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # a file named pipeline.py in the working directory must not be taken for this package
            "-m",
            module,
            *options,
            stdin=pipe if pipes else asyncio.subprocess.DEVNULL,
            stdout=pipe if pipes else words,
            stderr=words,
            env={**env, "PYTHONPATH": paths},
            start_new_session=True,
        )
    with suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, child.pid, _NICER)
    return child


async def end_children(children: Sequence[asyncio.subprocess.Process], *, grace_s: float) -> None:
    """Ask all to end; after `grace_s` those that haven't are killed, with all that they started."""
    for child in children:
        if child.returncode is None:
            # Not child.terminate(): that also reaps a child that has just ended, under asyncio's hands.
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(grace_s):
            for child in children:
                await child.wait()
    except TimeoutError:
        for child in children:
            if child.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)  # the leader of the session that it was started in
                await child.wait()


def last_words(said: Path) -> str:
    """The end of what a child said."""
    lines = said.read_text(errors="replace").splitlines() if said.exists() else []
    return "\n".join(lines[-_TAIL_LINES:]) or "(it said nothing)"
