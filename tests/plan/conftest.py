"""The command in this process, in a folder of its own where nothing is configured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipeline.cli import main


class Said(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its answer, which is one line of JSON."""
        (line,) = self.out.splitlines()
        return json.loads(line)


Plan = Callable[..., Said]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """`tokenweir plan` with these words; files are written to and read from the test's own folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOKENWEIR_CONFIG", raising=False)

    def call(*words: str, config: str = "") -> Said:
        if config:
            (tmp_path / "tokenweir.toml").write_text(config)
        code = main(["plan", *words])
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return call
