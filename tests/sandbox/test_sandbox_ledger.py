"""The ledger against brute force."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sandbox.ledger import Ledger, Used

_WINDOW_S = 6.0
CALLS = st.lists(st.tuples(st.integers(0, 4096), st.integers(1, 500), st.booleans()), min_size=1, max_size=150)


def _entered(calls: list[tuple[int, int, bool]], ledger: Ledger) -> list[tuple[float, int]]:
    """Admitted calls, all calls having been recorded."""
    now, admitted = 0.0, []
    for pause, tokens, fits in calls:
        now += pause / 1024
        ledger.record(now, tokens, admitted=fits)
        if fits:
            admitted.append((now, tokens))
    return admitted


@given(calls=CALLS)
def test_worst_window_is_the_fullest_of_all_windows(calls: list[tuple[int, int, bool]]) -> None:
    """No window of W seconds, wherever it ends, held more than the ledger says, and one held exactly that."""
    ledger = Ledger(requests=10, tokens=1000, window_s=_WINDOW_S)

    admitted = _entered(calls, ledger)

    windows = [[tokens for at, tokens in admitted if end - _WINDOW_S < at <= end] for end, _ in admitted]
    assert ledger.worst_window().requests == max(map(len, windows), default=0) / 10
    assert ledger.worst_window().tokens == max(map(sum, windows), default=0) / 1000


@given(calls=CALLS, low=st.integers(0, 600), length=st.integers(0, 600))
def test_used_sums_the_range(calls: list[tuple[int, int, bool]], low: int, length: int) -> None:
    """A range holds the admitted calls from its start up to but without its end."""
    ledger = Ledger(requests=10, tokens=1000, window_s=_WINDOW_S)

    admitted = _entered(calls, ledger)

    inside = [tokens for at, tokens in admitted if low <= at < low + length]
    assert ledger.used(low, low + length) == Used(requests=len(inside), tokens=sum(inside))


@given(calls=CALLS)
def test_counts_add_up(calls: list[tuple[int, int, bool]]) -> None:
    """Every call is counted once, in total and in its second."""
    ledger = Ledger(requests=10, tokens=1000, window_s=_WINDOW_S)

    admitted = _entered(calls, ledger)

    assert (ledger.calls, ledger.admitted) == (len(calls), len(admitted))
    assert ledger.total() == Used(requests=len(admitted), tokens=sum(tokens for _, tokens in admitted))
    seconds = ledger.per_second()
    assert sum(second[1] for second in seconds) == ledger.admitted
    assert sum(second[2] for second in seconds) == ledger.rejected
    assert [second[0] for second in seconds] == sorted({second[0] for second in seconds})


def test_a_window_is_open_at_its_start() -> None:
    """Two calls exactly W apart share no window, as in the sliding mode; the least bit closer and they do."""
    apart, closer = (Ledger(requests=1, tokens=10, window_s=6) for _ in range(2))

    for at, ledger in ((1.0, apart), (7.0, apart), (1.0, closer), (6.999, closer)):
        ledger.record(at, 10, admitted=True)

    assert apart.worst_window().tokens == 1.0
    assert closer.worst_window().tokens == 2.0


def test_forgetting_old_calls_changes_no_total() -> None:
    """With more calls than it keeps, the ledger's totals, worst window and recent ranges stay exact."""
    small, large = (Ledger(requests=10, tokens=1000, window_s=5, keep=keep) for keep in (50, 10_000))

    for number in range(5000):
        for ledger in (small, large):
            ledger.record(number * (0.1 if number % 100 < 50 else 1.0) + number, number % 97, admitted=True)

    assert small.total() == large.total()
    assert small.worst_window() == large.worst_window()
    end = 5000 * 2.0
    assert small.used(end - 60, end) == large.used(end - 60, end)
    assert len(small._at) <= 60


@pytest.mark.parametrize("tokens", [0, 2**40])
def test_any_size_is_entered(tokens: int) -> None:
    """Free and gigantic calls are counted like others."""
    ledger = Ledger(requests=1, tokens=1, window_s=1)

    ledger.record(1.0, tokens, admitted=True)

    assert ledger.total().tokens == tokens
