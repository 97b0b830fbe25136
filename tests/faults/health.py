"""What a worker's health pages say, as Kubernetes asks them."""

from __future__ import annotations

import urllib.error
import urllib.request

from tests.integration.processes import Workers


def statuses(run: Workers, page: str) -> list[int]:
    """The HTTP status of `/healthz` or `/readyz`, of each worker that has come up."""
    return [_status(f"http://127.0.0.1:{worker['metrics_port']}/{page}") for worker in run.started]


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
