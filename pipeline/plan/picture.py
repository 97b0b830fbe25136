"""A run as SVG, written by hand: calls a second at the provider, and how full the bucket was. Pure.

Colours follow the reader's light or dark theme; both are tested for contrast in docs/plan.md's picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from pipeline.plan.proof import Result
from tokenweir.terms import Terms

_WIDTH, _HEIGHT = 900, 470
_LEFT, _RIGHT = 64, 20
_TOPS, _PLOT = (84, 320), (180, 100)
_BARS: Final = 220  # more than these can't be told apart at this width

_STYLE: Final = """
.back{fill:#fff}.ink{fill:#222}.faint{fill:#666}.axis{stroke:#999;stroke-width:1}
.admitted{fill:#2b6cb0}.rejected{fill:#c53030}.level{fill:none;stroke:#2f855a;stroke-width:1.6}
.limit{stroke:#222;stroke-width:1.2;stroke-dasharray:6 4}
@media(prefers-color-scheme:dark){.back{fill:#16181d}.ink{fill:#e8e8e8}.faint{fill:#a8a8a8}.axis{stroke:#777}
.admitted{fill:#63a4e8}.rejected{fill:#ff7b7b}.level{stroke:#68d391}.limit{stroke:#e8e8e8}}
"""


def draw(result: Result, mode: str, terms: Sequence[Terms]) -> str:
    """The picture of a run that was watched.

    Raises:
        ValueError: it wasn't.
    """
    if result.seconds is None:
        raise ValueError("this run kept nothing to draw")
    seconds = result.seconds
    length = max(1, len(seconds.admitted), len(seconds.rejected), len(seconds.level))
    step = math.ceil(length / _BARS)
    admitted, rejected = _grouped(seconds.admitted, step, length), _grouped(seconds.rejected, step, length)
    rpm = sum(limit.limit for each in terms for limit in each.limits if limit.name == "rpm")
    limit_per_s = rpm / terms[0].allowed.window_s
    highest = max([limit_per_s, *(a + r for a, r in zip(admitted, rejected, strict=True))]) * 1.12 or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13" role="img">',
        f"<title>Calls at the provider and bucket level, mode {mode}</title><style>{_STYLE}</style>",
        f'<rect class="back" width="{_WIDTH}" height="{_HEIGHT}"/>',
        _text(
            _LEFT, 28, f"Mode {mode}, preset {terms[0].allowed.enforcement}, bound by {result.bound or 'nothing'}", 16
        ),
        _text(
            _LEFT,
            48,
            f"{result.admitted:,} calls admitted, {result.rejected:,} rejected; worst window "
            f"{result.worst_window_ratio:.1%} of the limit",
            13,
        ),
        *_calls(admitted, rejected, highest, limit_per_s, step),
        *_level(seconds.level, length),
        *_times(length),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _calls(
    admitted: Sequence[float], rejected: Sequence[float], highest: float, limit_per_s: float, step: int
) -> list[str]:
    floor, width = _TOPS[0] + _PLOT[0], (_WIDTH - _LEFT - _RIGHT) / len(admitted)
    per = "a second" if step == 1 else f"a second, means of {step} s"
    parts = [_legend(_TOPS[0] - 12, (("admitted", f"admitted {per}"), ("rejected", "rejected with 429")), limit_per_s)]
    for place, (yes, no) in enumerate(zip(admitted, rejected, strict=True)):
        x, low, high = _LEFT + place * width, yes / highest * _PLOT[0], no / highest * _PLOT[0]
        bar = max(0.8, width - 0.8)
        if yes:
            parts.append(_bar("admitted", x, floor - low, bar, low))
        if no:
            # One refusal among many calls must still be seen.
            high = max(3.0, high)
            parts.append(_bar("rejected", x, floor - low - high, bar, high))
    if limit_per_s:
        y = floor - limit_per_s / highest * _PLOT[0]
        parts += [_line("limit", y), _label(y, f"{limit_per_s:.1f}")]
    return [*parts, _line("axis", floor), _label(floor, "0")]


def _level(levels: Sequence[float], length: int) -> list[str]:
    top, height = _TOPS[1], _PLOT[1]
    lowest = min(0.0, *levels, 0.0)
    width, scale = (_WIDTH - _LEFT - _RIGHT) / length, height / (1 - lowest)
    step = max(1, len(levels) // (4 * _BARS))
    points = " ".join(
        f"{_LEFT + (second + 1) * width:.1f},{top + (1 - levels[second]) * scale:.1f}"
        for second in range(0, len(levels), step)
    )
    zero = top + scale
    return [
        f'<text class="ink" x="{_LEFT}" y="{top - 10}">emptiest bucket, of its capacity; below 0 is a debt</text>',
        f'<polyline class="level" points="{points}"/>',
        *(_line("axis", y) for y in (top, zero)),
        _label(top, "100 %"),
        _label(zero, "0 %"),
        *([_label(top + height, f"{lowest:.0%}".replace("%", " %"))] if lowest < -0.1 else []),
    ]


def _times(length: int) -> list[str]:
    tick = next((each for each in (10, 30, 60, 120, 300, 600, 1800) if length / each <= 12), 3600)
    width = (_WIDTH - _LEFT - _RIGHT) / length
    return [
        f'<text class="faint" x="{_LEFT + second * width:.1f}" y="{y}" text-anchor="middle">'
        f"{second // 60}:{second % 60:02}</text>"
        for y in (_TOPS[0] + _PLOT[0] + 18, _TOPS[1] + _PLOT[1] + 24)
        for second in range(0, length + 1, tick)
    ]


def _legend(y: float, names: Sequence[tuple[str, str]], limit_per_s: float) -> str:
    parts, x = [], float(_LEFT)
    for style, name in names:
        parts.append(f'<rect class="{style}" x="{x}" y="{y - 10}" width="12" height="12"/>')
        parts.append(f'<text class="ink" x="{x + 18}" y="{y}">{name}</text>')
        x += 44 + 7 * len(name)
    if limit_per_s:
        parts.append(f'<line class="limit" x1="{x}" x2="{x + 26}" y1="{y - 4}" y2="{y - 4}"/>')
        parts.append(f'<text class="ink" x="{x + 34}" y="{y}">requests allowed a second, on average</text>')
    return "".join(parts)


def _grouped(counts: Sequence[int], step: int, length: int) -> list[float]:
    """Means of `step` seconds each."""
    whole = [*counts, *[0] * (length - len(counts))]
    return [sum(whole[start : start + step]) / step for start in range(0, length, step)]


def _bar(style: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _line(style: str, y: float) -> str:
    return f'<line class="{style}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _label(y: float, text: str) -> str:
    return f'<text class="faint" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _text(x: float, y: float, text: str, size: int) -> str:
    weight = ' font-weight="600"' if size > 13 else ""
    return f'<text class="ink" x="{x}" y="{y}" font-size="{size}"{weight}>{text}</text>'
