"""`check`: every finding is a line with its cure, and the exit code tells scripts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from redis import Redis

from pipeline.cli.reach import edge, provider
from pipeline.config import Deployment, Edge
from tests.cli.conftest import Cli
from tests.support import Server, free_port, running_server

pytestmark = pytest.mark.anyio

_KEY = 'api_key = "env:TOKENWEIR_TEST_KEY"'


def _marks(text: str) -> dict[str, str]:
    """The mark of each finding."""
    return {line[4:].strip().partition(":")[0]: line[:4].strip() for line in text.splitlines()}


def _with_key(cli: Cli, key: str) -> None:
    config = Path(cli.folder, "tokenweir.toml")
    config.write_text(config.read_text().replace(_KEY, f'api_key = "{key}"'))


def test_a_fit_server_passes(cli: Cli) -> None:
    """Where nothing fails the exit code is 0, and the gate's resolved numbers are shown."""
    _with_key(cli, "sk-geheim")

    ended = cli("check", "--offline", "--workers", "12")

    marks = _marks(ended.stdout)
    assert ended.returncode == 0
    assert [marks[about] for about in ("redis", "commands", "eviction", "clock", "rights")] == ["ok"] * 5
    assert "tpm 30,000 per 60 s: burst 3,000" in ended.stdout
    assert "geheim" not in ended.stdout


def test_too_few_slots_are_a_warning(cli: Cli) -> None:
    """When the workers can't use the budget, the finding says how many could."""
    _with_key(cli, "sk-x")

    ended = cli("check", "--offline", "--workers", "1")

    assert _marks(ended.stdout)["slots"] == "warn"
    assert "50 premium calls" in ended.stdout
    assert "run 4 workers" in ended.stdout


def test_a_missing_key_fails(cli: Cli) -> None:
    """A provider key that isn't set is a failure that names the variable."""
    ended = cli("check", "--offline")

    assert ended.returncode == 1
    assert "export TOKENWEIR_TEST_KEY=" in ended.stdout


def test_a_server_that_may_evict_fails(offline: Cli) -> None:
    """A policy that throws queued work away is a failure with its cure; no append-only file is a warning."""
    with running_server("valkey", options=("--maxmemory-policy", "allkeys-lru")) as server:
        ended = offline("check", "--offline", "--redis", server.url)

    marks = _marks(ended.stdout)
    assert ended.returncode == 1
    assert (marks["eviction"], marks["persistence"]) == ("FAIL", "warn")
    assert "CONFIG SET maxmemory-policy noeviction" in ended.stdout


def test_missing_rights_fail(cli: Cli, redis_server: Server) -> None:
    """A user who lacks a right that workers need is told which one."""
    user = "tokenweir-test-narrow"
    with Redis.from_url(redis_server.url) as admin:
        admin.execute_command("ACL", "SETUSER", user, "on", ">pw", "~*", "+@all", "-xdel")
        try:
            url = redis_server.tcp_url.replace("//", f"//{user}:pw@")
            ended = cli("check", "--offline", "--redis", url)
        finally:
            admin.execute_command("ACL", "DELUSER", user)

    assert ended.returncode == 1
    assert f"FAIL  rights: user {user} may not XDEL tokenweir:" in ended.stdout


def test_an_unreachable_server_ends_with_3(offline: Cli) -> None:
    """Without Redis the rest is looked at all the same, and the exit code is 3."""
    ended = offline("check", "--offline")

    assert ended.returncode == 3
    assert _marks(ended.stdout)["redis"] == "FAIL"
    assert _marks(ended.stdout)["limit"] == "ok"


def test_show_prints_the_resolved_configuration(cli: Cli) -> None:
    """`--show` prints everything that is in force, defaults included and secrets masked, and touches no server."""
    _with_key(cli, "sk-geheim")

    ended = cli("check", "--show", "--redis", "redis://user:geheim@127.0.0.1:9/0")

    shown = json.loads(ended.stdout)
    (pool,) = shown["pools"].values()
    assert ended.returncode == 0
    assert "geheim" not in ended.stdout
    assert pool["max_attempts"] == 3


@pytest.fixture
async def model_server() -> AsyncIterator[str]:
    """Answers as an OpenAI and an Ollama server do; the key is `right`."""

    async def models(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer right":
            return web.json_response({"error": {}}, status=401)
        return web.json_response({"data": [{"id": "gpt-4o"}]})

    async def tags(_request: web.Request) -> web.Response:
        return web.json_response({"models": [{"name": "llama3:8b"}, {"name": "phi3:latest"}]})

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.get("/api/tags", tags)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


@pytest.mark.parametrize(
    ("key", "model", "path", "mark"),
    [
        ("right", "gpt-4o", "/v1", "ok"),
        ("right", "gpt-9", "/v1", "warn"),
        ("right", "gpt-4o", "", "warn"),
        ("wrong", "gpt-4o", "/v1", "FAIL"),
    ],
)
async def test_the_provider_is_asked(model_server: str, key: str, model: str, path: str, mark: str) -> None:
    """A refused key fails; a model that isn't listed and a wrong path are warned of; none shows the key."""
    found = await provider(Deployment(base_url=model_server + path, model=model, rpm=1), key)

    assert found.mark == mark
    assert key not in found.text


@pytest.mark.parametrize(("model", "mark"), [("llama3:8b", "ok"), ("phi3", "ok"), ("mistral", "FAIL")])
async def test_the_edge_is_asked(model_server: str, model: str, mark: str) -> None:
    """An edge without the model fails, and the cure is the command that fetches it."""
    found = await edge(Edge(base_url=model_server, model=model))

    assert found.mark == mark
    assert (found.cure == f"ollama pull {model}") is (mark == "FAIL")


async def test_nobody_there_is_a_finding() -> None:
    """A provider or an edge that can't be reached is a failure with a cure, and no error."""
    nowhere = f"http://127.0.0.1:{free_port()}"

    found = [await provider(Deployment(base_url=nowhere, rpm=1), ""), await edge(Edge(base_url=nowhere))]

    assert [finding.mark for finding in found] == ["FAIL", "FAIL"]
    assert all(finding.cure for finding in found)


async def test_a_server_that_speaks_something_else_is_a_finding() -> None:
    """Whatever answers at the provider's place, the check goes on."""

    async def babble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        writer.close()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        found = await provider(Deployment(base_url=f"http://127.0.0.1:{port}", rpm=1), "")

    assert found.mark == "FAIL"
