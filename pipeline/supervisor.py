"""Several worker processes under one: forked after the imports, so that they share what was loaded.

Nothing of the event loop or of Redis exists before the fork. A worker that ends unasked is started again,
after a growing pause; the supervisor itself holds no work, so killing it loses nothing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import structlog

from tokenweir.errors import ConfigError

log = structlog.get_logger()

_PR_SET_PDEATHSIG = 1
_STOPS = (signal.SIGTERM, signal.SIGINT)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _STEADY_S = 0.2, 10.0, 60.0


def supervise(work: Callable[[int], int], workers: int) -> int:
    """Keep `workers` processes running `work(index)` until SIGTERM or SIGINT; returns 0 after an orderly stop.

    A second signal is passed on like the first: workers then end at once.
    """
    if workers == 1:
        return work(0)
    supervisor = _Supervisor(work)
    for number in _STOPS:
        signal.signal(number, supervisor.on_signal)
    for index in range(workers):
        supervisor.start(index)
    return supervisor.wait()


class _Supervisor:
    def __init__(self, work: Callable[[int], int]) -> None:
        self._work = work
        self._started: dict[int, tuple[int, float]] = {}  # pid -> index, when
        self._stopping = False
        self._pause_s = _FIRST_PAUSE_S

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        for pid in self._started:
            with suppress(ProcessLookupError):  # reaped a moment ago
                os.kill(pid, signal.SIGTERM)

    def start(self, index: int) -> None:
        """Fork the worker `index`."""
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal between the fork and the note of it would be passed on to all workers but this one.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        pid = os.fork()
        if pid:
            self._started[pid] = (index, time.monotonic())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            return
        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the supervisor, which tells us
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            _end_with(parent)
            code = self._work(index)
        except ConfigError as error:
            log.error("worker_refused", reason=str(error))
            code = 2
        except Exception:  # nobody is left above to say why
            log.exception("worker_failed")
        finally:
            sys.stderr.flush()
            os._exit(code)

    def wait(self) -> int:
        """Reap and restart until all have ended after a stop."""
        while self._started:
            pid, status = os.wait()
            index, began = self._started.pop(pid, (-1, 0.0))
            if index < 0 or self._stopping:
                continue
            if time.monotonic() - began > _STEADY_S:
                self._pause_s = _FIRST_PAUSE_S
            code = os.waitstatus_to_exitcode(status)
            if code == 2:
                self.on_signal(signal.SIGTERM, None)  # the configuration is wrong: starting again won't mend it
                return 2
            log.error("worker_ended", pid=pid, code=code, restart_in_s=self._pause_s)
            self._pause()
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
            if not self._stopping:
                self.start(index)
        return 0

    def _pause(self) -> None:
        """Wait before a start; a stop ends it (signals alone don't end a sleep)."""
        until = time.monotonic() + self._pause_s
        while not self._stopping and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))


def _end_with(parent: int) -> None:
    """Have the kernel end this process in order when its supervisor dies, kill -9 included (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)
