"""The story: the same every time, as heavy as it says, and counted alike by the gate and the provider."""

from __future__ import annotations

import tomllib
from itertools import islice
from statistics import fmean

import pytest

from pipeline import tokens
from pipeline.config import parse
from pipeline.demo.installation import configuration
from pipeline.demo.story import SIMPLE_TASKS, Ask, Story, batch, wishes
from pipeline.sandbox.latency import Latency
from pipeline.sandbox.ready import Latencies, Ready
from pipeline.sandbox.tokens import prompt_tokens

_STORY = Story()
_ANSWERED_S = 0.5  # about what an answer takes in the demo
_NO_LATENCY = Latency(mean_s=1.0, p50_s=1.0, p99_s=1.0)


def _asked(story: Story) -> list[Ask]:
    """What the users ask if every answer takes `_ANSWERED_S`."""
    asked = []
    for user in range(story.users):
        now_s = 0.0
        for wish in wishes(story, user):
            now_s += wish.think_s
            if now_s >= story.length_s:
                break
            asked.append(wish.ask)
            now_s += _ANSWERED_S
    return asked


def _charged(ask: Ask) -> int:
    """What the provider counts."""
    return prompt_tokens([ask.prompt]) + ask.cap


def _reserved(ask: Ask) -> int:
    """What the gate counts."""
    return tokens.estimate_prompt({"messages": [{"role": "user", "content": ask.prompt}]}, "gpt-4o") + ask.cap


def test_both_runs_play_the_same_story() -> None:
    """The wishes of a user and the batch job depend on the seed alone."""
    again = Story(seed=_STORY.seed)

    assert list(islice(wishes(_STORY, 3), 20)) == list(islice(wishes(again, 3), 20))
    assert batch(_STORY) == batch(again)
    assert batch(_STORY) != batch(Story(seed=_STORY.seed + 1))


def test_every_request_has_its_own_id() -> None:
    """No two requests of a run share an id, or one would be taken for a repeat of the other."""
    asks = [*_asked(_STORY), *batch(_STORY)]

    assert len({ask.id for ask in asks}) == len(asks)


def test_users_fill_seven_tenths_of_the_budget() -> None:
    """The users alone stay within the provider's limits: about 71 % of its tokens, at about 571 a call."""
    asked = _asked(_STORY)

    assert sum(map(_charged, asked)) / (_STORY.tpm * _STORY.minutes) == pytest.approx(0.71, abs=0.02)
    assert fmean(map(_charged, asked)) == pytest.approx(571, rel=0.02)


def test_a_quarter_of_the_users_requests_is_simple() -> None:
    """Between 22 % and 30 % of what the users ask may be answered by the edge."""
    asked = _asked(_STORY)

    assert 0.22 <= sum(ask.task in SIMPLE_TASKS for ask in asked) / len(asked) <= 0.30


def test_users_and_batch_need_more_than_there_is() -> None:
    """With the batch job there is more to do than the budget allows, so that work is waiting until the end."""
    everything = sum(map(_charged, [*_asked(_STORY), *batch(_STORY)]))

    assert 1.0 < everything / (_STORY.tpm * _STORY.minutes) < 1.2


def test_gate_and_provider_count_alike() -> None:
    """The gate reserves at least what the provider charges, and at most 2 % more: a miscount would waste budget."""
    asks = [*_asked(_STORY), *batch(_STORY)]

    assert all(_reserved(ask) >= _charged(ask) for ask in asks)
    assert sum(map(_reserved, asks)) <= 1.02 * sum(map(_charged, asks))


@pytest.mark.parametrize("minute_s", [6.0, 12.0])
def test_a_longer_minute_stretches_everything_alike(minute_s: float) -> None:
    """The scale changes when things happen, not what happens."""
    story = Story(minute_s=minute_s)
    for ours, theirs in islice(zip(wishes(story, 1), wishes(_STORY, 1), strict=True), 5):
        assert ours.ask == theirs.ask
        assert ours.think_s * story.time_scale == pytest.approx(theirs.think_s * _STORY.time_scale)


def test_the_configuration_is_the_storys() -> None:
    """The workers are told the provider's limits and window, and to send within a 60th of it."""
    latency = Latencies(premium_ttft=_NO_LATENCY, edge_total=_NO_LATENCY, tokens_per_second=1.0, time_scale=10.0)
    ready = Ready(premium="http://127.0.0.1:1/v1", edge="http://127.0.0.1:2", control="", pid=1, latency=latency)

    config = parse(tomllib.loads(configuration(_STORY, ready, edge_model="llama3")))

    _, pool = config.pool("main")
    deployment = pool.deployments[0]
    assert (deployment.rpm, deployment.tpm, deployment.window_s) == (500, 30_000, 6.0)
    assert deployment.send_within_s == pytest.approx(0.1)
    assert pool.edge is not None
    assert pool.edge.tasks == SIMPLE_TASKS
