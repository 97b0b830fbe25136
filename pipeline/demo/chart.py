"""A picture of both runs: calls admitted and rejected in each second, as SVG written by hand. Pure."""

from collections.abc import Sequence

from pipeline.demo.story import Story
from pipeline.demo.tally import Side

_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT = 56, 16
_PLOT_HEIGHT = 170
_TOPS = (70, 310)  # of the two plots
_ADMITTED, _REJECTED, _LIMIT = "#2b6cb0", "#d64545", "#555"
_FONT = 'font-family="system-ui, sans-serif"'


def chart(baseline: Side, side: Side, story: Story) -> str:
    """The picture; both plots share their scales."""
    sides = (("Without tokenweir", baseline), ("With tokenweir", side))
    limit = story.rpm / story.minute_s
    seconds = 1 + max((row[0] for _, one in sides for row in one.per_second), default=0)
    highest = max([limit, *(row[1] + row[2] for _, one in sides for row in one.per_second)]) * 1.1
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_FONT} font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="28" font-size="16" font-weight="600">Calls a second at the provider, a provider minute'
        f" lasting {story.minute_s:g} s</text>",
        *_legend(),
    ]
    for top, (title, one) in zip(_TOPS, sides, strict=True):
        text = f"{title}: {one.provider_calls:,} calls, {one.provider_429:,} rejected"
        parts += _plot(one.per_second, top, text, seconds=seconds, highest=highest, limit=limit)
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> list[str]:
    parts, x = [], _LEFT
    for name, colour in (("admitted", _ADMITTED), ("rejected with 429", _REJECTED)):
        parts.append(
            f'<rect x="{x}" y="38" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="49">{name}</text>'
        )
        x += 40 + 8 * len(name)
    parts.append(f'<line x1="{x}" x2="{x + 24}" y1="44" y2="44" stroke="{_LIMIT}" stroke-dasharray="5 4"/>')
    return [*parts, f'<text x="{x + 32}" y="49">requests allowed; most calls are bound by tokens</text>']


def _plot(
    rows: Sequence[tuple[int, int, int]], top: int, title: str, *, seconds: int, highest: float, limit: float
) -> list[str]:
    step = (_WIDTH - _LEFT - _RIGHT) / seconds
    floor = top + 20 + _PLOT_HEIGHT

    def height(calls: float) -> float:
        return calls / highest * _PLOT_HEIGHT

    parts = [f'<text x="{_LEFT}" y="{top + 8}" font-weight="600">{title}</text>']
    for second, admitted, rejected in rows:
        x, width = _LEFT + second * step, max(1.0, step - 2)
        low, high = height(admitted), height(rejected)
        parts.append(_bar(x, floor - low, width, low, _ADMITTED))
        parts.append(_bar(x, floor - low - high, width, high, _REJECTED))
    y = floor - height(limit)
    parts.append(_line(y, _LIMIT, ' stroke-dasharray="5 4"'))
    parts.append(_line(floor, "#999"))
    parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{limit:.0f}</text>')
    parts.append(f'<text x="{_LEFT - 8}" y="{floor + 4}" text-anchor="end">0</text>')
    for second in range(0, seconds, 5):
        x = _LEFT + second * step
        parts.append(f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle" fill="#555">{second} s</text>')
    return parts


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _line(y: float, colour: str, more: str = "") -> str:
    return f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"{more}/>'
