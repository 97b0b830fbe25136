"""The page about the limiter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support import Server
from tokenweir.keys import Keys

_ROOT = Path(__file__).parents[2]


def test_the_example_runs_as_it_stands(redis_server: Server, keys: Keys) -> None:
    """Who copies the example gets a grant; only where Redis is, and the length of a minute, differ here."""
    page = (_ROOT / "docs/limiter.md").read_text()
    example = re.search(r"```python\n(.*?)```", page, re.S)
    assert example
    text = example[1].replace("redis://localhost:6379/0", redis_server.tcp_url).replace('"main"', f'"{keys.pool}"')
    text = text.replace('"rpm": 500', '"window_s": 2, "send_within_s": 0.2, "rpm": 500')

    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", text], cwd=_ROOT, capture_output=True, text=True, timeout=60
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "answered by primary\n", "")
