"""The arithmetic behind the table: percentiles, and which provider windows count for the budget's use. Pure."""

import math
from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them don't exceed; 0 when there are none."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(share * len(ordered))) - 1] if ordered else 0.0


def waiting_spans(samples: Sequence[tuple[float, int]]) -> list[Span]:
    """When work was waiting, from (time, how much waited) in the order of time.

    Between two samples that both saw some, it is taken to have waited; a span therefore begins and ends rather too
    late and too early.
    """
    spans: list[Span] = []
    begun: float | None = None
    last = 0.0
    for at_s, depth in samples:
        if depth > 0:
            begun, last = at_s if begun is None else begun, at_s
        elif begun is not None:
            spans.append((begun, last))
            begun = None
    return spans if begun is None else [*spans, (begun, last)]


def whole_windows(start_s: float, window_s: float, spans: Sequence[Span]) -> list[Span]:
    """The provider windows, counted from `start_s`, from the second on, that lie wholly in one of `spans`."""
    windows = []
    for begun, ended in spans:
        first = max(1, math.ceil((begun - start_s) / window_s))
        beyond = math.floor((ended - start_s) / window_s)
        windows += [(start_s + n * window_s, start_s + (n + 1) * window_s) for n in range(first, beyond)]
    return windows


def used_ratio(used: Sequence[tuple[int, int]], *, rpm: int, tpm: int) -> float:
    """The share of the budget used over windows with (requests, tokens) each: of both limits the larger share."""
    if not used:
        return 0.0
    requests = sum(window[0] for window in used)
    tokens = sum(window[1] for window in used)
    return max(requests / rpm, tokens / tpm) / len(used)
