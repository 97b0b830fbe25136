"""The figures of the table: percentiles, windows that count, and how much of the budget they used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.demo.figures import percentile, used_ratio, waiting_spans, whole_windows


def test_percentiles_are_values_that_occurred() -> None:
    """A percentile is the smallest value that so large a share doesn't exceed."""
    values = [float(value) for value in range(100, 0, -1)]

    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([], 0.99) == 0.0


@given(values=st.lists(st.floats(0, 100), min_size=1), share=st.floats(0.01, 1))
def test_percentiles_follow_their_definition(values: list[float], share: float) -> None:
    """At least the share of the values is at or below it, and fewer are below any smaller value."""
    found = percentile(values, share)

    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values) + 1e-9


def test_waiting_is_what_two_looks_in_a_row_saw() -> None:
    """A look that finds nothing waiting ends the span at the look before."""
    samples = [(0.0, 0), (1.0, 3), (2.0, 1), (3.0, 0), (4.0, 5), (5.0, 5)]

    assert waiting_spans(samples) == [(1.0, 2.0), (4.0, 5.0)]
    assert waiting_spans([]) == []


def test_only_whole_windows_from_the_second_on_count() -> None:
    """The first window is never judged, and none that work waited in for a part only."""
    assert whole_windows(100.0, 6.0, [(103.0, 125.0)]) == [(106.0, 112.0), (112.0, 118.0), (118.0, 124.0)]
    assert whole_windows(100.0, 6.0, [(100.0, 106.0)]) == []
    assert whole_windows(100.0, 6.0, [(107.0, 112.9), (113.0, 118.0)]) == []


def test_the_larger_share_is_the_budgets_use() -> None:
    """Requests or tokens, whichever is used more, over all windows together."""
    assert used_ratio([(100, 30_000), (100, 27_000)], rpm=500, tpm=30_000) == pytest.approx(0.95)
    assert used_ratio([(500, 3_000)], rpm=500, tpm=30_000) == pytest.approx(1.0)
    assert used_ratio([], rpm=500, tpm=30_000) == 0.0
