"""Which traffic a plan is played with: a profile, or a file, sized to what the deployments allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from pipeline.plan.trace import Trace
from pipeline.plan.traffic import Bursts, Constant, Sizes, Story, Traffic
from tokenweir.terms import WINDOW_LIMITS, Allowed

Profile = Literal["constant", "bursts", "story"]

# Requests that are to reach the limit of requests first reserve this share of the tokens that fit to them.
_SPARSE = 0.5
# Of these, so many may be as large as any.
_LARGE_SHARE = 0.02
_DEFAULT_TOKENS = 600
_STORY_TOKENS = 30_000


class Load(NamedTuple):
    """A traffic by name; `bound` is the limit that it is to reach, '' = whichever it does."""

    name: str
    bound: str
    make: Callable[[], Traffic]


def loads(
    profile: Profile | None, allowed: Sequence[Allowed], *, largest_share: float, seed: int, file: Trace | None = None
) -> list[Load]:
    """What is to be played: without a profile, endless work and bursts, each bound by every limit in turn."""
    limits = _least(allowed)
    window_s = allowed[0].window_s
    if file is not None:
        return [Load("traffic", "", lambda: file)]
    if profile == "story":
        scale = limits.get("tpm", _STORY_TOKENS) / _STORY_TOKENS
        return [Load("story", "", lambda: Story(seed=seed, scale=scale))]
    names = [name for name in WINDOW_LIMITS if name in limits]
    sizes = {name: _sizes(limits, name, largest_share) for name in names}
    constant = [Load("constant", name, _constant(sizes[name], seed)) for name in names]
    bursts = [Load("bursts", name, _bursts(limits, sizes[name], window_s, seed)) for name in names]
    return bursts if profile == "bursts" else constant if profile == "constant" else constant + bursts


def _constant(sizes: Sizes, seed: int) -> Callable[[], Traffic]:
    return lambda: Constant(sizes, seed=seed)


def _bursts(limits: dict[str, int], sizes: Sizes, window_s: float, seed: int) -> Callable[[], Traffic]:
    calls = _calls(limits, sizes)
    return lambda: Bursts(sizes, calls_per_window=calls, window_s=window_s, seed=seed)


def _least(allowed: Sequence[Allowed]) -> dict[str, int]:
    """The limits of the smallest deployment: what fits there fits everywhere."""
    names = {name for each in allowed for name in each.limits}
    return {name: min(each.limits[name] for each in allowed if name in each.limits) for name in names}


def _sizes(limits: dict[str, int], bound: str, largest_share: float) -> Sizes:
    """Sizes of requests that reach the limit `bound` before any other."""
    tokens = min((limits[name] for name in ("tpm", "itpm", "otpm") if name in limits), default=None)
    requests = limits.get("rpm")
    if tokens is None:
        return Sizes(small=_DEFAULT_TOKENS, largest=_DEFAULT_TOKENS)
    largest = max(2, round(tokens * largest_share))
    if bound != "rpm" or requests is None:
        # Where so few requests are allowed that small ones would never use the tokens, they are larger.
        return Sizes(small=largest, largest=max(largest, round(4 * tokens / requests) if requests else 0))
    mean = _SPARSE * tokens / requests
    share = min(_LARGE_SHARE, mean / 4 / (largest / 2))
    return Sizes(small=max(2, round(1.5 * mean)), largest=largest, large_share=share)


def _calls(limits: dict[str, int], sizes: Sizes) -> float:
    """Requests of these sizes that fit into a window."""
    tokens = limits.get("tpm")
    return min(limits.get("rpm", 1_000_000), tokens / sizes.mean if tokens else 1_000_000)
