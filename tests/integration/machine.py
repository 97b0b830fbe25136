"""How much of this machine a deployment under test gets: others may use its cores too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tests.integration.rig import Rig


class Ticks(NamedTuple):
    """CPU time that was spent so far: by all (or lost to neighbours), and by one rig and its test."""

    all: int
    ours: int

    @classmethod
    def of(cls, rig: Rig) -> Ticks:
        """As it stands."""
        pids = (os.getpid(), rig.store.pid, rig.sandbox.pid, *rig.runs[0].live)
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        user, nice, system, _idle, _io, *more = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
        return cls(user + nice + system + sum(more), sum(int(stat[11]) + int(stat[12]) for stat in stats))

    def slowness(self, rig: Rig) -> float:
        """How many times slower others have made it since then; 1 on a machine of its own."""
        now = Ticks.of(rig)
        return (now.all - self.all) / max(1, now.ours - self.ours)
