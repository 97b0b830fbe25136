"""What operators type to change limits: understood, or refused in one line that says what to type instead."""

from __future__ import annotations

import pytest

from pipeline.cli.allowance import Value, changed, chosen, differences, wanted
from pipeline.cli.parser import UsageError
from tokenweir.terms import Allowed, terms

BEFORE = terms(Allowed(limits={"rpm": 500, "tpm": 30_000}))


@pytest.mark.parametrize(
    ("words", "deployment", "values"),
    [
        (["primary", "rpm=400"], "primary", {"rpm": 400}),
        (["tpm=20_000", "rpm=1,000"], "", {"tpm": 20_000, "rpm": 1000}),
        (["rpm=none", "max_in_flight=8"], "", {"rpm": None, "max_in_flight": 8}),
        (["settlement=refund", "spare"], "spare", {"settlement": "refund"}),
        ([], "", {}),
    ],
)
def test_what_is_typed_is_understood(words: list[str], deployment: str, values: dict[str, Value]) -> None:
    """A deployment and values, in any order, numbers written as people write them."""
    assert wanted(words) == (deployment, values)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rmp=400"], "did you mean 'rpm'"),
        (["max_inflight=4"], "did you mean 'max_in_flight'"),
        (["settlement=refnd"], "did you mean 'refund'"),
        (["rpm=nonee"], "did you mean 'none'"),
        (["rpm=4oo"], "not a whole number"),
        (["rpm=-1"], "not a whole number"),
        (["rpm=1.5"], "not a whole number"),
        (["rpm="], "not a whole number"),
        (["rpm=0"], "`rpm=none` takes it away"),
        (["rpm=9999999999999"], "must be from 1"),
        (["rpm=\u0664"], "not a whole number"),
        (["rpm=1", "rpm=2"], "given twice"),
        (["a", "b", "rpm=1"], "one deployment at a time"),
        (["enforcement=continuous"], "configuration file"),
    ],
)
def test_what_can_t_be_is_refused(words: list[str], said: str) -> None:
    """Every mistake has its own line, with the nearest thing that exists."""
    with pytest.raises(UsageError) as caught:
        wanted(words)

    assert said in str(caught.value)


def test_a_deployment_is_found() -> None:
    """The only one needs no name; of several the nearest is named when one is mistyped."""
    assert chosen("", ["primary"]) == "primary"
    assert chosen("spare", ["primary", "spare"]) == "spare"
    with pytest.raises(UsageError, match="did you mean 'primary'"):
        chosen("primray", ["primary", "spare"])
    with pytest.raises(UsageError, match="which deployment"):
        chosen("", ["primary", "spare"])


def test_only_what_was_named_changes() -> None:
    """All that isn't named stays as it was, and the gate's numbers are worked out anew."""
    after = changed(BEFORE, {"rpm": 400, "max_in_flight": 8, "rpd": 10_000})

    assert after == terms(Allowed(limits={"rpm": 400, "tpm": 30_000, "rpd": 10_000}, max_in_flight=8))
    assert differences(BEFORE, after) == [
        ("rpm", "500", "400"),
        ("rpd", "none", "10,000"),
        ("max_in_flight", "none", "8"),
    ]
    assert differences(after, after) == []


def test_the_last_limit_stays() -> None:
    """A deployment without any limit would be a flood: taking the last one away is refused."""
    one = changed(BEFORE, {"tpm": None})

    assert [limit.name for limit in one.limits] == ["rpm"]
    with pytest.raises(UsageError, match="last limit"):
        changed(one, {"rpm": None})
    assert [limit.name for limit in changed(one, {"rpm": None, "tpm": 5}).limits] == ["tpm"]
