"""`submit`: one request, or a file of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.cli.request_file import Defaults, read_requests
from tests.cli.conftest import Cli, Hands
from tests.support import eventually

pytestmark = pytest.mark.anyio

_DEFAULTS = Defaults(tenant="acme", priority="batch", task="", complexity="", max_wait=None)
_FILE = [
    {"prompt": "one"},
    {"prompt": "two", "id": "own-2", "tenant": "globex", "class": "standard", "task": "route", "max_wait": 5},
    {"custom_id": "b-3", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user"}]}},
]
_BAD_LINES = [
    b"[]",
    b"7",
    b"null",
    b"\xff",
    b'{"prompt": ""}',
    b'{"prompt": "\xff"}',
    b'{"prompt": "x", "body": {}}',
    b'{"body": {}}',
    b'{"prompt": "x", "class": "urgent"}',
    b'{"prompt": "x", "max_wait": -1}',
    b'{"prompt": "x", "id": "a b"}',
    b'{"custom_id": "x", "url": "/v1/embeddings", "body": {"input": "x"}}',
    b"[" * 100_000,
]


@pytest.mark.leaves_keys("the request isn't finished")
async def test_all_options_reach_the_entry(cli: Cli, hands: Hands) -> None:
    """What is given on the command line stands in the entry, under the producer's own id."""
    options = ["--task", "intent", "--tenant", "acme", "--class", "standard", "--complexity", "simple"]

    ended = cli("submit", "Where is my parcel?", *options, "--max-wait", "9", "--id", "p-1")

    (fields,) = await hands.fields("ingest")
    assert (ended.returncode, ended.stdout) == (0, "p-1\n")
    assert fields == {
        b"id": b"p-1",
        b"class": b"standard",
        b"prompt": b"Where is my parcel?",
        b"tenant": b"acme",
        b"task": b"intent",
        b"complexity": b"simple",
        b"max_wait": b"9.000",
    }


async def test_wait_prints_the_answer(cli: Cli, hands: Hands) -> None:
    """With --wait the answer is printed, and nothing else."""
    process = cli.start("submit", "x", "--wait", "20")
    await eventually(lambda: hands.finish("ingest", content="It left today."), 20)

    out, err = process.communicate(timeout=20)

    assert (process.returncode, out, err) == (0, "It left today. 0\n", "")


async def test_a_failed_request_ends_with_1(cli: Cli, hands: Hands) -> None:
    """A request that ends in an error ends the command with 1 and its code."""
    process = cli.start("submit", "x", "--stream")
    await eventually(lambda: hands.finish("ingest", status="error"), 20)

    out, err = process.communicate(timeout=20)

    assert (process.returncode, out) == (1, "")
    assert "provider_rejected" in err


@pytest.mark.leaves_keys("the request isn't finished")
def test_no_answer_in_time_names_the_id(cli: Cli) -> None:
    """When no answer comes in time, the command says so with the id, and the request goes on."""
    ended = cli("submit", "x", "--id", "late-1", "--wait", "0.05")

    assert ended.returncode == 1
    assert "late-1" in ended.stderr


@pytest.mark.leaves_keys("the requests aren't finished")
async def test_a_file_goes_in_but_for_its_bad_lines(cli: Cli, hands: Hands) -> None:
    """Bad lines are named by number; all others go in, those of class batch by their own lane."""
    lines = [*map(json.dumps, _FILE), "{no", "", '{"promt": "x"}', '{"prompt": "x", "id": "own-2"}', '{"prompt": 7}']
    Path(cli.folder, "in.jsonl").write_text("\n".join(lines))

    ended = cli("submit", "-f", "in.jsonl", "--tenant", "acme")

    said = [line.split(":")[1].strip() for line in ended.stderr.splitlines() if " line " in line]
    ids = ended.stdout.split()
    assert ended.returncode == 1
    assert said == [f"in.jsonl line {number}" for number in (4, 6, 7, 8)]
    assert ids[1:] == ["own-2", "b-3"]
    assert [fields[b"id"].decode() for fields in await hands.fields("ingest:batch")] == [ids[0], "b-3"]
    assert [(fields[b"tenant"], fields[b"task"]) for fields in await hands.fields("ingest")] == [(b"globex", b"route")]


@pytest.mark.leaves_keys("the requests aren't finished")
async def test_a_file_can_be_submitted_again(cli: Cli, hands: Hands) -> None:
    """Submitting a file again queues nothing twice, even where its lines have no ids and say the same."""
    Path(cli.folder, "in.jsonl").write_text('{"prompt": "same"}\n' * 300)

    first = cli("submit", "-f", "in.jsonl")
    second = cli("submit", "-f", "in.jsonl")

    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout == second.stdout
    assert len(set(first.stdout.split())) == 300
    assert len(await hands.fields("ingest:batch")) == 300


async def test_a_full_queue_is_waited_for(cli: Cli, hands: Hands) -> None:
    """When the queue is full, submitting a file waits until there is room and then goes on to its end."""
    config = Path(cli.folder, "tokenweir.toml")
    config.write_text(config.read_text().replace("lease_s = 30", "max_waiting = 2"))
    Path(cli.folder, "in.jsonl").write_text('{"prompt": "x"}\n' * 3)
    await hands.store.gate.seed()
    process = cli.start("submit", "-f", "in.jsonl")
    answered: list[str] = []

    async def all_answered() -> bool:
        answered.extend(await hands.finish("ingest:batch"))
        return len(answered) == 3

    await eventually(all_answered, 20)
    out, _ = process.communicate(timeout=20)

    assert process.returncode == 0
    assert sorted(out.split()) == sorted(answered)


def test_lines_keep_their_ids_and_defaults() -> None:
    """A line's own fields win over the options; without an id it gets the same one in every run."""
    raw = [json.dumps(line).encode() + b"\n" for line in _FILE]

    first, second = (list(read_requests(raw, _DEFAULTS)) for _ in range(2))

    drafts = [line.draft for line in first if line.draft]
    assert first == second
    assert [(draft.tenant, draft.priority) for draft in drafts] == [
        ("acme", "batch"),
        ("globex", "standard"),
        ("acme", "batch"),
    ]
    assert len(drafts[0].id) == 32


@pytest.mark.parametrize("raw", _BAD_LINES)
def test_any_line_is_survived(raw: bytes) -> None:
    """Whatever a line holds, it gets one line of reason, and its neighbours go in."""
    first, second = read_requests([raw, b'{"prompt": "x"}'], _DEFAULTS)

    assert first.draft is None
    assert first.fault
    assert second.draft is not None
