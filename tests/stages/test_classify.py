"""What the way in makes of an entry: which requests it lets on, where to, and what the others are told."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline import tokens
from pipeline.config import Edge, Pool
from pipeline.message import Request
from pipeline.outcome import Dead, Done, Forward, Outcome
from pipeline.stage import Delivery
from stages.classify import Classify
from tokenweir.keys import Keys

KEYS = Keys("main")
POOL = Pool(edge=Edge(tasks=("intent", "route"), num_ctx=1_000))
ENTRY = "1700000000123-4"


def _decide(fields: dict[str, str | bytes], pool: Pool = POOL, *, waited_ms: float = -1) -> Outcome:
    raw = {name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in fields.items()}
    delivery = Delivery(entry_id=ENTRY, lane="ingest", fields=raw, waited_ms=waited_ms)
    return asyncio.run(Classify(pool, KEYS).handle(delivery))


def _request(fields: dict[str, str | bytes], pool: Pool = POOL) -> Request:
    outcome = _decide(fields, pool)
    assert isinstance(outcome, Forward)
    return outcome.request


def _chat(*messages: dict[str, Any], **others: Any) -> dict[str, str | bytes]:
    chat = {"messages": messages or [{"role": "user", "content": "Where is my parcel?"}], **others}
    return {"body": msgspec.json.encode(chat), "task": "intent"}


@pytest.mark.parametrize("name", ["interactive", "standard", "batch"])
def test_a_request_goes_to_the_lane_of_its_class(name: str) -> None:
    """A request waits at the gate among its own class, and only the first entry with its id goes there."""
    outcome = _decide({"prompt": "hi", "class": name, "id": "order-7"})
    assert isinstance(outcome, Forward)
    assert (outcome.to, outcome.claims, outcome.request.id) == (f"gate:{name}", True, "order-7")


@pytest.mark.parametrize(
    "payload",
    [
        *("not json", "12345", '"text"', "null", "[]", "{}", "", "[" * 200_000, b"\xff\x00"),
        *('{"messages":"hi"}', '{"messages":[]}', '{"messages":[{"role":"user2","content":"hi"}]}'),
        '{"messages":[{"role":"user"}],"max_tokens":0}',
    ],
)
def test_a_foreign_entry_is_dead_with_a_reason(payload: str | bytes) -> None:
    """An entry that isn't ours is kept whole as a dead letter, and its producer is told why."""
    outcome = _decide({"body": payload, "id": "order-7"})
    assert isinstance(outcome, Dead)
    assert (outcome.reason, outcome.code, outcome.request_id) == ("invalid_request", "invalid_request", "order-7")
    assert "`body" in outcome.message


def test_a_dead_letter_without_an_id_has_the_entrys() -> None:
    """Where no id can be read, the answer goes under the id of the entry."""
    for fields in ({"foo": "bar"}, {"prompt": "hi", "id": "x" * 10_000}):
        outcome = _decide(dict(fields))
        assert isinstance(outcome, Dead)
        assert outcome.request_id == ENTRY


def test_a_request_that_never_fits_gets_its_error() -> None:
    """A request beyond every limit gets a typed error with its metadata, at once and without a dead letter."""
    fields = {**_chat(max_tokens=20_000), "id": "big", "metadata": '{"a":1}', "stream": "1"}
    outcome = _decide(fields, waited_ms=8)
    assert isinstance(outcome, Done)
    result = outcome.result
    assert (result.id, result.status, result.code, result.route) == ("big", "error", "too_large_for_limit", "none")
    assert (bytes(result.metadata), result.waited_ms, outcome.stream) == (b'{"a":1}', 8, True)
    error = msgspec.json.decode(result.body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "too_large_for_limit")
    assert "15,000" in error["message"]


@pytest.mark.parametrize(
    ("fields", "waited_ms", "late"),
    [
        ({"deadline": "1700000000"}, -1, True),
        ({"deadline": "1700000000.123"}, -1, True),
        ({"deadline": "1700000000.124"}, -1, False),
        ({"max_wait": "2"}, 1_999, False),
        ({"max_wait": "2"}, 2_000, True),
        ({}, 1e9, False),
    ],
)
def test_what_is_too_late_is_never_started(fields: dict[str, str | bytes], waited_ms: float, late: bool) -> None:
    """A request whose deadline has passed is answered as expired instead of costing anything."""
    outcome = _decide({"prompt": "hi", **fields}, waited_ms=waited_ms)
    assert isinstance(outcome, Done if late else Forward)
    if isinstance(outcome, Done):
        assert (outcome.result.status, outcome.result.code) == ("expired", "deadline_exceeded")


@pytest.mark.parametrize(
    ("fields", "simple"),
    [
        ({"task": "intent"}, True),
        ({"task": "analysis"}, False),
        ({"task": "analysis", "complexity": "simple"}, True),
        ({"task": "intent", "complexity": "complex"}, False),
        ({}, True),
        ({"task": ""}, True),
        *(
            ({"prompt": text}, True)
            for text in ("what's my balance", "Can I return these shoes?", "cancel my order please", "how do i pay")
        ),
        *(
            ({"prompt": text}, False)
            for text in (
                "Why is my parcel late?",
                "What is the difference between both plans?",
                "Can you write a poem about parcels?",
                "Where is it?\nAnd what is it?",
                "Is `x = 1` valid?",
                "Parcels.",
                "Wo ist mein Paket?",
                "Is " + "my parcel there or " * 30,
            )
        ),
    ],
)
def test_simple_is_what_clearly_is(fields: dict[str, str | bytes], simple: bool) -> None:
    """What the producer states decides, then its task; without either only a short plain question is simple."""
    prompt: dict[str, str | bytes] = {"prompt": "Where is my parcel?"}
    assert _request({**prompt, **fields}).simple is simple


def test_a_second_turn_is_complex() -> None:
    """An answer to an earlier turn needs a task to count as simple."""
    ask, say = {"role": "user", "content": "Where is my parcel?"}, {"role": "assistant", "content": "Which one?"}
    system = {"role": "system", "content": "You are kind."}
    for messages, simple in (([ask], True), ([system, ask], True), ([ask, say, ask], False), ([system], False)):
        assert _request({**_chat(*messages), "task": ""}).simple is simple


def test_without_an_edge_all_is_complex() -> None:
    """A pool without a local model sends nothing there, whatever the producer states."""
    request = _request({"prompt": "hi", "task": "intent", "complexity": "simple"}, Pool())
    assert (request.simple, request.edge) == (False, False)


@pytest.mark.parametrize(
    ("fields", "served"),
    [
        (_chat(), True),
        (_chat({"role": "user", "content": [{"type": "text", "text": "hi"}]}), True),
        (_chat(response_format={"type": "text"}, tools=[], n=1, logprobs=False), True),
        (_chat(max_tokens=900), True),
        (_chat(max_tokens=999), False),
        (_chat(n=2), False),
        (_chat(logprobs=True), False),
        (_chat(tools=[{"type": "function", "function": {"name": "f"}}]), False),
        (_chat(response_format={"type": "json_object"}), True),
        (_chat(response_format="json"), False),
        (_chat(response_format={"type": "json_schema", "json_schema": {}}), False),
        (_chat(modalities=["text", "audio"]), False),
        (_chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, max_tokens=1), False),
        (_chat({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}), False),
        (_chat({"role": "user", "content": ["hi"]}), False),
        (_chat({"role": "developer", "content": "hi"}), False),
        (_chat({"role": "tool", "content": "hi", "tool_call_id": "c"}), False),
        (_chat({"role": "assistant", "content": "hi", "tool_calls": [{"id": "c"}]}), False),
        (_chat({"role": "user", "content": None}), False),
    ],
)
def test_the_edge_gets_only_what_it_can_serve(fields: dict[str, str | bytes], served: bool) -> None:
    """Tools, schemas, pictures, several choices and what exceeds its context never go to the local model."""
    assert _request(fields).edge is served


def test_it_has_nothing_to_do_beside_deliveries() -> None:
    """The stage is ready from the start, pays for nothing, and lets others take over what it lost."""
    stage = Classify(POOL, KEYS)
    asyncio.run(stage.run(asyncio.Event()))
    assert (stage.name, stage.lanes, stage.concurrency) == ("classify", ("ingest", "ingest:batch"), 32)
    assert (stage.calls, stage.longest_s, stage.ready) == (False, 0, True)


def test_a_usual_request_costs_little() -> None:
    """A prompt of 1 kB is read, judged and counted in a fraction of a millisecond."""
    tokens.preload()
    prompt = ("Where is my parcel? It left the depot on Monday. " * 21)[:1_024]
    times = []
    for _ in range(200):
        began = time.thread_time()
        _request({**_chat({"role": "user", "content": prompt}), "stream": "1"})
        times.append(time.thread_time() - began)
    assert min(times) < 0.005


def test_real_questions_pass() -> None:
    """Of 500 real questions every one goes on, and one with a task that the edge has is simple."""
    folder = os.environ.get("TOKENWEIR_DATA")
    if not folder:
        pytest.skip("set TOKENWEIR_DATA to the folder with clinc_data_full.json (CLINC150)")
    rows = json.loads((Path(folder) / "clinc_data_full.json").read_text())["test"]
    for question, intent in random.Random(4).sample(rows, 500):
        request = _request({"prompt": question, "task": "intent", "metadata": json.dumps({"intent": intent})})
        assert (request.simple, request.edge) == (True, True)
        assert _request({"prompt": question}).edge
