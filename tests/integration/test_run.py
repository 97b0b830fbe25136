"""A running pool as its users see it: producers, consumers, operators."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest

from tests.integration.rig import API_KEY, Rig, open_rig, raw_command


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """Two workers, and a budget that nobody reaches."""
    with open_rig() as opened:
        opened.run(2)
        yield opened


@pytest.fixture(autouse=True)
def _clean(rig: Rig) -> Iterator[None]:
    """After every test: one result an id, empty streams, no stray key."""
    yield
    rig.assert_clean()


@pytest.mark.parametrize("tool", ["redis-cli", "socket"])
def test_a_newcomers_first_request_gets_its_result(rig: Rig, tool: str) -> None:
    """One XADD from a shell, and its answer stands on `responses`."""
    words = ["XADD", "tokenweir:{main}:ingest", "*", "prompt", "Where is my parcel?", "task", "intent"]
    if tool == "redis-cli":
        found = shutil.which("redis-cli") or shutil.which("valkey-cli")
        if not found:
            pytest.skip("no redis-cli on this machine")
        said = subprocess.run([found, "-p", str(rig.store.port), *words], capture_output=True, check=True).stdout
        entry = said.decode().strip()
    else:
        entry = raw_command(rig.store.port, *words).decode().split("\r\n")[1]

    result = rig.wait_for([entry])[0]

    assert (result.status, result.id, result.code) == ("ok", entry, "")
    assert result.content
    assert 0 <= result.waited_ms <= result.ttft_ms <= result.total_ms


def test_simple_and_complex_requests_come_back_once_each(rig: Rig) -> None:
    """A mixed load is answered completely, and the provider saw exactly the calls that were started."""
    calls, started = rig.book().premium.calls, rig.metric("tokenweir_provider_calls_total", outcome="started")

    results = rig.wait_for(rig.add_many(60))

    assert {result.status for result in results} == {"ok"}
    book = rig.book().premium
    assert book.rejected == 0
    started = rig.metric("tokenweir_provider_calls_total", outcome="started") - started
    assert book.calls - calls == started == sum(result.route == "premium" for result in results)


def test_deltas_make_up_the_answer(rig: Rig) -> None:
    """Whoever asks for a stream reads the answer piece by piece on `reply:<id>`, and the result at its end."""
    request = rig.add("Tell me a story", stream="1", complexity="complex")

    result = rig.wait_for([request])[0]

    reply = [fields for _, fields in rig.command("XRANGE", rig.keys.reply(request), "-", "+")]
    reply = [dict(zip(flat[::2], flat[1::2], strict=True)) if isinstance(flat, list) else flat for flat in reply]
    deltas = [fields for fields in reply if fields[b"kind"] == b"delta"]
    assert len(deltas) > 1
    assert b"".join(fields[b"text"] for fields in deltas).decode() == result.content
    assert [int(fields[b"index"]) for fields in deltas] == list(range(len(deltas)))
    assert reply[-1][b"kind"] == b"done"


def test_no_deltas_without_asking(rig: Rig) -> None:
    """A request that didn't ask for a stream leaves no reply stream."""
    result = rig.ask("Tell me a story", complexity="complex")

    assert rig.redis.exists(rig.keys.reply(result.id)) == 0


def test_a_repeated_id_is_one_request(rig: Rig) -> None:
    """A producer that isn't sure may add its request again: one answer, one call."""
    repeats = [rig.add("[same] again?", id="same-1", complexity="complex") for _ in range(5)]
    rig.wait_for(repeats)
    rig.add("[same] once more?", id="same-1", complexity="complex")
    rig.ask("something after it")

    rig.assert_clean()

    assert len(rig.results["same-1"]) == 1
    assert rig.calls("[same]") == 1


def test_what_a_raw_client_claims_comes_back(rig: Rig) -> None:
    """An operator may XCLAIM an entry for a consumer that does nothing: after the lease a worker takes it up."""
    rig.ask("the first one waits for the workers to make their groups")
    key, dead = rig.keys.key("ingest"), rig.command("XLEN", rig.keys.key("dead"))
    with rig.redis.pipeline(transaction=True) as both:  # read in the same step, before any worker can
        both.xadd(key, {"prompt": "[stuck] who has me?"})
        both.xreadgroup("classify", "absent", {key: ">"})
        entry = both.execute()[0]

    claimed = rig.command("XCLAIM", key, "classify", "elsewhere", 0, entry)
    result = rig.wait_for([entry.decode()])[0]

    assert len(claimed) == 1
    assert result.status == "ok"
    assert rig.command("XLEN", rig.keys.key("dead")) == dead


def test_metrics_and_health_answer(rig: Rig) -> None:
    """Every worker process serves metrics, health and readiness on a port that it logs."""
    rig.ask("anything")

    for worker in rig.runs[0].started:
        base = f"http://127.0.0.1:{worker['metrics_port']}"
        for path, part in (("healthz", b"ok"), ("readyz", b"ready"), ("metrics", b"tokenweir_requests_total")):
            with urllib.request.urlopen(f"{base}/{path}", timeout=5) as reply:
                assert (reply.status, part in reply.read()) == (200, True), path
    assert rig.metric("tokenweir_requests_total", status="ok") >= 1


def test_two_pools_share_nothing(rig: Rig) -> None:
    """Workers of one pool never touch what stands under another pool's prefix."""
    other = rig.configure("other")
    run = other.run()
    try:
        # Ids of their own: the two entries' may be equal, written to two streams in one millisecond.
        mine = rig.add("[mine] whose am I?", complexity="complex", id="mine")
        theirs = other.add("[theirs] whose am I?", id="theirs")
        rig.wait_for([mine])
        other.wait_for([theirs])
        other.assert_clean()
    finally:
        run.end()
        rig.runs.remove(run)

    assert theirs not in rig.results
    assert mine not in other.results
    roots = {key.split(b"}:")[0] for key in rig.redis.scan_iter("*", count=1000)}
    assert roots == {b"tokenweir:{main", b"tokenweir:{other"}


def test_logs_hold_no_prompt_and_no_key(rig: Rig) -> None:
    """Whatever happens, neither a prompt, nor an answer, nor an API key gets into a log."""
    secret = "xylophone-quartz"
    requests = [rig.add(f"{secret} {kind}", complexity=kind, stream="1") for kind in ("simple", "complex")]
    requests.append(rig.add_raw({"body": f'{{"{secret}": NaN'}))
    rig.order(kind="status:500", match=secret)
    rig.order(kind="error", match=secret, side="edge")

    results = rig.wait_for(requests)

    for text in [run.text for run in rig.runs]:
        assert secret not in text
        assert API_KEY not in text
        assert all(result.content not in text for result in results if result.content)
    assert API_KEY not in str(results)
