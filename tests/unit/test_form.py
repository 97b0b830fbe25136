"""How the code is laid out: budgets for size, and who may touch what. import-linter holds the rest."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES, MOST_FUNCTION_LINES = 300, 60


def _sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.lua"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:  # an unpacked release has no repository
        found = [
            path
            for folder in ("tokenweir", "pipeline", "stages", "lua", "tests")
            for path in (ROOT / folder).rglob("*.py")
        ]
        return [path for path in found if "__pycache__" not in path.parts]
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


SOURCES = _sources()


def test_there_are_sources() -> None:
    """The checks below look at something."""
    assert len(SOURCES) > 50


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_short(path: Path) -> None:
    """A reader finds no file above 300 lines and no function above 60."""
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES, f"{path.name} is too long: split it"
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MOST_FUNCTION_LINES, f"{path.name}: {node.name} has {length} lines"


def test_only_the_configuration_reads_the_environment() -> None:
    """Nothing below the composition root knows where a value came from; the sandbox is a program of its own."""
    readers = [
        path
        for path in SOURCES
        if path.suffix == ".py" and not {"tests", "sandbox"} & set(path.parts) and "os.environ" in path.read_text()
    ]
    assert [path.name for path in readers] == ["config.py"]


def test_only_one_place_imports_the_redis_client() -> None:
    """One edge to Redis: the connection and what it is made of, and nothing else."""
    importers = set()
    for path in SOURCES:
        if path.suffix != ".py" or "tests" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "redis" for name in names):
                importers.add(str(path.relative_to(ROOT)))
    assert importers == {f"tokenweir/{name}.py" for name in ("connection", "links", "places", "urls")}
