"""What can go wrong, one function each: strikes a `Ground` and notes it there."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

from tests.chaos.ground import Ground, some_worker
from tests.integration.processes import wait_until

# So many replies are cut by one `cut_replies`.
CUT_AT_ONCE = 4
Trouble = Callable[[Ground, random.Random], None]


def kill(ground: Ground, draw: random.Random) -> None:
    """kill -9 of a worker."""
    pid, began_s = some_worker(ground, draw), time.time()
    os.kill(pid, signal.SIGKILL)
    ground.struck("kill", began_s, pid)


def cut_replies(ground: Ground, draw: random.Random) -> None:
    """Four connections break in the middle of Redis's next reply, or before its first byte."""
    ground.proxy.lose_replies(CUT_AT_ONCE, after_bytes=draw.choice((0, 0, 3, 40)))
    ground.struck("cut", time.time())


def restart(ground: Ground, _draw: random.Random) -> None:
    """Redis is ended in order, and started again with its data."""
    began_s = time.time()
    ground.rig.store.stop()
    ground.rig.store.launch()
    wait_until(lambda: ground.rig.store.answers, 60, why="the server doesn't load its data")
    ground.struck("restart", began_s)


def freeze(ground: Ground, draw: random.Random) -> None:
    """Redis stands still for longer than a lease; meanwhile a worker is killed."""
    began_s = time.time()
    os.kill(ground.rig.store.pid, signal.SIGSTOP)
    try:
        kill(ground, draw)
        _sit_out(began_s + 1.5 * ground.lease_s)
    finally:
        os.kill(ground.rig.store.pid, signal.SIGCONT)
    ground.struck("freeze", began_s)


def flush_scripts(ground: Ground, _draw: random.Random) -> None:
    """Redis forgets the scripts."""
    ground.rig.command("SCRIPT", "FLUSH")
    ground.struck("script flush", time.time())


def _sit_out(until_s: float) -> None:
    wait_until(lambda: time.time() >= until_s, 60)
