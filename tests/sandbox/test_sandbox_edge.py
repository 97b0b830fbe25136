"""The Ollama side, seen through the official client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import ollama
import pytest

from pipeline.sandbox.answers import Answer
from pipeline.sandbox.tokens import prompt_tokens

if TYPE_CHECKING:
    from tests.sandbox.conftest import Bench, Open

pytestmark = pytest.mark.anyio
_PROMPT = "Where is my parcel?"


async def test_chat_is_answered_with_counts(bench: Bench) -> None:
    """The official client gets the answer, its reason to end, and counts and durations."""
    reply = await bench.edge(_PROMPT, options={"num_predict": 30})

    answer = Answer.to(_PROMPT, cap=30, seed=bench.settings.seed)
    assert (reply.message.content, reply.done_reason) == (answer.text, answer.finish_reason)
    assert (reply.prompt_eval_count, reply.eval_count) == (prompt_tokens([_PROMPT]), answer.tokens)
    assert reply.total_duration > 0
    assert reply.load_duration >= 0


async def test_a_chat_stream_says_what_a_plain_one_says(bench: Bench) -> None:
    """Lines of words, then one that is done and has the counts; together the same answer."""
    lines = [line async for line in await bench.edge(_PROMPT, stream=True)]

    answer = Answer.to(_PROMPT, cap=128, seed=1)
    assert "".join(line.message.content for line in lines) == answer.text
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1].eval_count == answer.tokens
    assert len(lines) == 9


async def test_generate_speaks_too(bench: Bench) -> None:
    """`/api/generate` answers plain and streamed alike, the system text included in the prompt."""
    plain = await bench.ollama.generate(bench.model, _PROMPT, system="Be brief.")
    lines = [line async for line in await bench.ollama.generate(bench.model, _PROMPT, system="Be brief.", stream=True)]

    assert plain.response == "".join(line.response or "" for line in lines)
    assert plain.prompt_eval_count == prompt_tokens(["Be brief.", _PROMPT])
    assert lines[-1].done_reason in ("stop", "length")


async def test_long_prompts_are_cut_silently(bench: Bench) -> None:
    """As for real, only the count of evaluated tokens shows that num_ctx was too small."""
    reply = await bench.edge("word " * 100, options={"num_ctx": 50})

    assert reply.prompt_eval_count == 50


async def test_the_model_is_listed(bench: Bench) -> None:
    """Installed and loaded models and the version can be asked for."""
    assert [model.model for model in (await bench.ollama.list()).models] == [bench.model]
    assert [model.model for model in (await bench.ollama.ps()).models] == [bench.model]
    async with bench.http.get(f"{bench.urls.edge}/api/version") as response:
        assert "version" in await response.json()


async def test_an_unknown_model_isnt_found(bench: Bench) -> None:
    """404 in Ollama's words."""
    with pytest.raises(ollama.ResponseError, match="model 'llama9' not found") as caught:
        await bench.ollama.generate("llama9", "hi")

    assert caught.value.status_code == 404


async def test_the_model_is_loaded_by_the_first_call_that_waits_for_it(opened: Open) -> None:
    """A caller who gives up during the load aborts it; one who stays pays for it once; an unload is possible."""
    bench = await opened(edge_load_s=500.0)
    hasty = ollama.AsyncClient(bench.urls.edge, timeout=0.05)
    with pytest.raises(httpx.ReadTimeout):
        await hasty.generate(bench.model, "hi")
    await hasty._client.aclose()
    assert (await bench.ollama.ps()).models == []

    loading = await bench.ollama.generate(bench.model)
    cold, warm = await bench.edge(), await bench.edge()

    assert loading.done_reason == "load"
    assert len((await bench.ollama.ps()).models) == 1
    assert max(cold.load_duration, warm.load_duration) < 0.1e9
    await bench.ollama.generate(bench.model, keep_alive=0)
    assert (await bench.ollama.ps()).models == []


async def test_only_so_many_are_answered_at_a_time(opened: Open) -> None:
    """Calls above `edge_parallel` queue without bound, in order, and none is refused."""
    bench = await opened(edge_parallel=2)
    await bench.order(*[{"kind": "hang", "side": "edge", "match": "stuck"}] * 2)

    async with asyncio.TaskGroup() as group:
        stuck = [group.create_task(_given_up(bench)) for _ in range(2)]
        await bench.until(lambda _book, calls: len(calls.calls) == 2)
        waiting = [group.create_task(bench.edge(f"waiting {number}")) for number in range(10)]
        await bench.until(lambda _book, calls: len(calls.calls) == 12)
        assert [call.fate for call in (await bench.calls()).calls] == ["fault"] * 2 + ["open"] * 10
        for task in stuck:
            task.cancel()

    assert all(task.result().done for task in waiting)


async def _given_up(bench: Bench) -> None:
    await bench.edge("stuck")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["status:500", "status:503", "reset", "html"])
async def test_ordered_errors_arrive(bench: Bench, kind: str, stream: bool) -> None:
    """An ordered failure strikes the edge once; the next call goes well."""
    await bench.order({"kind": kind, "side": "edge"})

    with pytest.raises((ollama.ResponseError, httpx.RemoteProtocolError, ValueError)):
        await _attempt(bench, stream)
    await _attempt(bench, stream)

    assert (await bench.book()).edge.fates == {"fault": 1, "answered": 1}


async def test_streams_that_are_no_answers(bench: Bench) -> None:
    """A stream without `done`, one that only says `load`, one that turns into an error."""
    await bench.order(*({"kind": kind, "side": "edge"} for kind in ("cut", "empty_choices", "error")))

    cut, empty = await _attempt(bench, True), await _attempt(bench, True)

    assert not any(line.done for line in cut)
    assert [(line.message.content, line.done_reason) for line in empty] == [("", "load")]
    with pytest.raises(ollama.ResponseError, match="error was encountered"):
        await _attempt(bench, True)


async def _attempt(bench: Bench, stream: bool) -> Any:
    reply = await bench.edge(stream=stream)
    return [line async for line in reply] if stream else reply


async def test_a_malformed_call_is_a_bad_request(bench: Bench) -> None:
    """400 in Ollama's form."""
    async with bench.http.post(f"{bench.urls.edge}/api/chat", data=b"{") as response:
        assert (response.status, list(await response.json())) == (400, ["error"])
