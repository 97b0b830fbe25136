"""What providers say is acted on: refused keys, used-up quotas, waits of minutes; and no call is unaccounted for."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from pipeline.sandbox.control import CallPage
from pipeline.sandbox.process import start_sandbox
from pipeline.sandbox.ready import Ready
from pipeline.sandbox.settings import SandboxSettings
from tests.integration.processes import wait_until
from tests.integration.rig import WINDOW_S, Rig, open_rig


def paused_s(rig: Rig, deployment: str = "primary") -> float:
    """For how long the deployment is closed from now on."""
    return float(rig.budget(deployment).get("pause_until", 0)) / 1e6 - time.time()


def let_the_pause_end(rig: Rig, deployment: str = "primary") -> None:
    """As if its minute had gone by: the next call is a probe."""
    rig.change_budget(deployment, pause_until=round(time.time() * 1e6))
    rig.redis.xadd(rig.keys.key("deferred"), {"why": "reopened"})


def mend(sandbox: Ready) -> None:
    """The provider is in order again."""
    order = urllib.request.Request(f"{sandbox.control}/faults", method="DELETE")
    urllib.request.urlopen(order, timeout=10).close()


def calls(sandbox: Ready) -> int:
    """Premium calls that reached this provider, refused ones included."""
    with urllib.request.urlopen(f"{sandbox.control}/calls", timeout=10) as reply:
        page = msgspec.json.decode(reply.read(), type=CallPage)
    return sum(call.side == "premium" for call in page.calls)


def command(rig: Rig, *words: str) -> str:
    """The output of a command of the real command line."""
    line = [sys.executable, "-m", "pipeline.cli", *words, "--config", str(rig.config)]
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=30).stdout


@pytest.mark.parametrize("opened_by", ["probe", "resume"])
def test_c30_a_used_up_quota_closes_premium_until_it_is_paid(opened_by: str) -> None:
    """The account runs dry: one call a minute, simple work by the edge, complex work waits and is answered later."""
    with open_rig(pool="quota") as rig:
        run = rig.run(2)
        wait_until(lambda: rig.redis.exists(rig.keys.key("edge:alive")), 10)
        rig.ask("before", complexity="complex")
        rig.order(kind="status:429:insufficient_quota", times=None)
        before = calls(rig.sandbox)

        waiting = [rig.add("the first one to be refused", complexity="complex")]
        wait_until(lambda: paused_s(rig) > 50, 10)
        waiting += [rig.add(f"complex {i}", complexity="complex") for i in range(20)]
        simple = rig.wait_for([rig.add(f"simple {i}", task="intent") for i in range(20)])
        assert {(result.status, result.route) for result in simple} == {("ok", "edge")}
        assert calls(rig.sandbox) == before + 1

        let_the_pause_end(rig)
        wait_until(lambda: paused_s(rig) > 50, 10, why="the probe wasn't made, or its refusal paused nothing")
        assert calls(rig.sandbox) == before + 2, "more than a probe went out"
        assert not set(waiting) & set(rig.results)
        metrics = {"deployment": "primary", "reason": "quota_exhausted"}
        assert rig.metric("tokenweir_provider_refused_total", **metrics) == 2
        assert rig.metric("tokenweir_deployment_paused", **metrics) == 2, "each of two workers shows it"
        assert rig.metric("tokenweir_provider_429_total") == 0
        assert {line["reason"] for line in run.events("deployment_out")} == {"quota_exhausted"}
        assert 1 <= len(run.events("deployment_out")) <= 2, "once a worker"

        mend(rig.sandbox)
        if opened_by == "probe":
            let_the_pause_end(rig)
        else:
            assert "primary is open again" in command(rig, "limits", "resume", "primary")
        answers = rig.wait_for(waiting, 10)
        assert {(result.status, result.route) for result in answers} == {("ok", "premium")}
        assert "pause_until" not in rig.budget()
        assert "factor" not in rig.budget(), "a quota is no reason to go slower"
        # The drain's timekeeper still has the notice that it kept for the end of the pause.
        wait_until(lambda: set(rig.lengths()) <= {"deferred"}, 10, why=f"stuck: {rig.lengths()}")


def test_a_refused_key_is_nobodys_error_while_another_deployment_serves() -> None:
    """One of two keys is revoked: the other deployment serves everything, and the revoked one is left in peace."""
    with open_rig(pool="keys") as rig, start_sandbox(_revoked()) as broken:
        rig.config.write_text(rig.config.read_text() + _deployment("revoked", broken))
        run = rig.run(2)

        results = rig.wait_for([rig.add(f"q {i}", complexity="complex") for i in range(40)])
        wait_until(lambda: paused_s(rig, "revoked") > 50, 10)
        at_first = calls(broken)
        results += rig.wait_for([rig.add(f"r {i}", complexity="complex") for i in range(40)])

        assert {(result.status, result.route) for result in results} == {("ok", "premium")}
        assert 1 <= at_first <= 40
        assert calls(broken) == at_first, "it was called while it was closed"
        assert {line["deployment"] for line in run.events("deployment_out")} == {"revoked"}
        assert "revoked is paused for" in command(rig, "limits", "show")
        rig.assert_clean()


def test_c31_every_call_has_a_grant_and_every_grant_a_call() -> None:
    """With time-outs and 500s mixed in, the provider has seen exactly the calls that the budget was charged for."""
    with open_rig(pool="exact", call={"first_byte_s": 0.6, "connect_s": 0.4}) as rig:
        run = rig.run(3)
        rig.order(kind="hang", match="[hang", times=6)
        rig.order(kind="status:500", match="[broken", times=6)
        marks = ["[hang]", "[broken]", *["[well]"] * 8]

        ids = [rig.add(f"{marks[i % 10]} {i}", complexity="complex") for i in range(100)]
        results = rig.wait_for(ids, 40)
        rig.assert_clean()

        never_made = rig.metric("tokenweir_provider_calls_total", outcome="given_back")
        late = len(run.events("call_not_made_in_time"))
        started = rig.metric("tokenweir_provider_calls_total", outcome="started")
        assert {result.status for result in results} == {"ok"}
        assert calls(rig.sandbox) == started - late
        assert calls(rig.sandbox) == rig.budget()["granted"] - never_made
        assert calls(rig.sandbox) == sum(result.attempt for result in results) == 100 + 12
        assert "in_flight" not in rig.budget()


def test_c33_the_later_reset_closes_premium() -> None:
    """A 429 whose tokens come back in 6 min and whose requests in 120 ms closes premium for 6 minutes."""
    resets = {"x-ratelimit-reset-requests": "120ms", "x-ratelimit-reset-tokens": "6m0s"}
    with _scripted(429, resets) as (url, seen), open_rig(pool="resets", call={"base_url": url}) as rig:
        rig.run()
        waiting = rig.add("when?", complexity="complex", max_wait="4")

        wait_until(lambda: paused_s(rig) > 0, 10)

        assert 350 < paused_s(rig) <= 360
        assert rig.wait_for([waiting])[0].code == "deadline_exceeded"
        assert len(seen) == 1


def test_headers_reach_the_budget_within_a_second() -> None:
    """A limit that the provider's headers state lower than ours is in force, and named in the log, within a second."""
    headers = {
        "x-ratelimit-limit-requests": "3000",
        "x-ratelimit-remaining-requests": "2999",
        "x-ratelimit-reset-requests": f"{WINDOW_S / 3000 * 1000:.0f}ms",
    }
    with _scripted(200, headers) as (url, _), open_rig(pool="told", call={"base_url": url}) as rig:
        run = rig.run()
        rig.ask("what is left?", complexity="complex")

        wait_until(lambda: rig.budget().get("rpm.told") == 3000, 1, why="nobody told the budget")

        wait_until(lambda: run.events("limit_lower"), 1)
        (line,) = run.events("limit_lower")
        assert (line["deployment"], line["limit"], line["level"]) == ("primary", "rpm", "error")
        assert rig.metric("tokenweir_gate_alarms_total", kind="limit_lower") == 1
        assert "the provider states 3,000" in command(rig, "limits", "show")


def _revoked() -> SandboxSettings:
    """A provider that doesn't know our key."""
    return SandboxSettings(rpm=5000, tpm=5_000_000, window_s=WINDOW_S, time_scale=10.0, api_keys=("sk-another",))


def _deployment(name: str, sandbox: Ready) -> str:
    """One more deployment of the pool `keys`."""
    values = {"name": name, "base_url": sandbox.premium, "api_key": "sk-revoked-000", "rpm": 5000, "tpm": 5_000_000}
    lines = [f"{key} = {json.dumps(value)}" for key, value in (values | {"window_s": WINDOW_S}).items()]
    return "\n".join(["[[pools.keys.deployments]]", *lines, "send_within_s = 0.5", ""])


@contextmanager
def _scripted(status: int, headers: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """A provider that always says the same: its base URL, and the paths it was called at."""
    seen: list[str] = []
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
    body = {"error": {"message": "slow down"}} if status != 200 else {"id": "c", "choices": [choice]}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            seen.append(self.path)
            data = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {
                "content-type": "application/json",
                "content-length": str(len(data)),
                **headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing to say."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1", seen
        finally:
            server.shutdown()
            thread.join(5)
