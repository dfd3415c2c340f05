"""Draws charts as SVG text: heat maps, points and lines. Equal figures give equal bytes, and no package is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from .drawing import plain, svg_page, ticks

COLOURS = (
    "#2f6fb8", "#dc7430", "#4f8a3d", "#b9517c", "#1d8a99", "#b08a1c", "#6a5acd", "#c4504a", "#8f6b4a", "#2f8f6b",
    "#7b6fb0", "#7a8f2e", "#3556a8", "#9c4fa0",
)  # fmt: skip
_STYLE = "\n" + files(__package__).joinpath("charts.css").read_text(encoding="utf-8")
_LETTER = 6.3  # width of a letter, about


@dataclass(frozen=True, slots=True)
class Cell:
    """A field of a heat map: 0 is the lowest colour, 1 the highest; `tip` is its tooltip."""

    heat: float
    words: str
    tip: str
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one colour, joined by a line where they are `joined`."""

    name: str
    points: tuple[tuple[float, float], ...]
    tips: tuple[str, ...] = ()
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """Axes with series. Logarithmic axes have a tick at each power of two, or of ten. `diagonal`: x = y is drawn."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log_x: int = 0  # the base; 0: linear, from 0
    log_y: int = 0
    diagonal: bool = False


def heat_map(title: str, about: str, columns: Sequence[str], rows: Mapping[str, Sequence[Cell | None]]) -> str:
    """A field for each row and column; None is an empty one."""
    left = 24 + _LETTER * max(map(len, rows), default=0)
    top = 64 + _LETTER * 0.72 * max(map(len, columns), default=0)
    wide, high = 58.0, 19.0
    width = max(left + wide * len(columns) + 100, 24 + _LETTER * len(about))
    height = top + high * len(rows) + 18
    body = []
    for i, name in enumerate(columns):
        x, y = left + wide * (i + 0.4), top - 6
        body.append(f'<text x="{x:.1f}" y="{y:.1f}" transform="rotate(-40 {x:.1f} {y:.1f})">{_escaped(name)}</text>')
    for j, (name, cells) in enumerate(rows.items()):
        y = top + high * j
        body.append(f'<text x="{left - 8:.1f}" y="{y + 13.5:.1f}" text-anchor="end">{_escaped(name)}</text>')
        for i, cell in enumerate(cells):
            box = f'x="{left + wide * i:.1f}" y="{y:.1f}" width="{wide - 1:g}" height="{high - 1:g}"'
            if cell is None:
                body.append(f'<rect class="none" {box}/>')
                continue
            edge = ' stroke="#1b2430" stroke-width="1.6"' if cell.marked else ""
            tip = f"<title>{_escaped(cell.tip)}</title>"
            body.append(f'<rect {box} fill="{_heat(cell.heat)}"{edge}>{tip}</rect>')
            at = f'x="{left + wide * (i + 0.5):.1f}" y="{y + 13.5:.1f}"'
            body.append(
                f'<text class="ink" {at} text-anchor="middle" pointer-events="none">{_escaped(cell.words)}</text>'
            )
    return _page(title, about, width, height, body)


def _heat(part: float) -> str:
    """From a pale red over white to blue-green; dark text is readable on each."""
    part = min(1.0, max(0.0, part))
    low, middle, high = (240, 178, 160), (250, 248, 240), (120, 190, 180)
    a, b, t = (low, middle, part * 2) if part < 0.5 else (middle, high, part * 2 - 1)
    return "#" + "".join(f"{round(x + (y - x) * t):02x}" for x, y in zip(a, b, strict=True))


def panels(title: str, about: str, of: Sequence[Panel], colours: Sequence[str]) -> str:
    """Axes side by side, two in a line. `colours` are the names of all series, each with its colour everywhere."""
    wide, high, left, top = 430.0, 300.0, 70.0, 84.0
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(colours)}
    body, x, y = [], 24.0, 66.0
    width = max(24 + min(2, len(of)) * (wide + left + 30), 24 + _LETTER * len(about))
    for name in colours:
        if x + 22 + _LETTER * len(name) > width:
            x, y = 24.0, y + 17
        body.append(f'<circle cx="{x + 5:g}" cy="{y - 4:g}" r="5" fill="{colour[name]}"/>')
        body.append(f'<text x="{x + 15:.1f}" y="{y:g}">{_escaped(name)}</text>')
        x += 32 + _LETTER * len(name)
    top = y + 38
    for i, panel in enumerate(of):
        at = left + (i % 2) * (wide + left + 30), top + (i // 2) * (high + 84)
        body += _panel(panel, colour, *at, wide, high)
    return _page(title, about, width, top + -(-len(of) // 2) * (high + 84) - 20, body)


def _panel(panel: Panel, colour: Mapping[str, str], left: float, top: float, wide: float, high: float) -> list[str]:
    points = [point for series in panel.series for point in series.points]
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    if panel.diagonal:
        xs = ys = xs + ys
    across, down = _Scale.of(xs, panel.log_x, wide), _Scale.of(ys, panel.log_y, high)
    bottom = top + high
    body = [f'<text x="{left:g}" y="{top - 10:g}" font-weight="600">{_escaped(panel.title)}</text>']
    for tick, label in across.ticks():
        x = left + across.place(tick)
        body.append(f'<line class="grid" x1="{x:.1f}" y1="{top:g}" x2="{x:.1f}" y2="{bottom:g}"/>')
        body.append(f'<text x="{x:.1f}" y="{bottom + 15:g}" text-anchor="middle">{label}</text>')
    for tick, label in down.ticks():
        y = bottom - down.place(tick)
        body.append(f'<line class="grid" x1="{left:g}" y1="{y:.1f}" x2="{left + wide:g}" y2="{y:.1f}"/>')
        body.append(f'<text x="{left - 6:g}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    body.append(f'<rect class="frame" x="{left:g}" y="{top:g}" width="{wide:g}" height="{high:g}"/>')
    if panel.diagonal:
        body.append(
            f'<line class="frame" x1="{left:g}" y1="{bottom:g}" x2="{left + wide:g}" y2="{top:g}" '
            'stroke-dasharray="4 3"/>'
        )
    x, y = left + wide / 2, bottom + 34
    body.append(f'<text class="sub" x="{x:g}" y="{y:g}" text-anchor="middle">{_escaped(panel.x)}</text>')
    x, y = left - 50, top + high / 2
    turned = f'transform="rotate(-90 {x:g} {y:g})" text-anchor="middle"'
    body.append(f'<text class="sub" x="{x:g}" y="{y:g}" {turned}>{_escaped(panel.y)}</text>')
    for series in panel.series:
        ink = colour[series.name]
        placed = [(left + across.place(a), bottom - down.place(b)) for a, b in series.points]
        if series.joined and len(placed) > 1:
            way = " ".join(f"{a:.1f},{b:.1f}" for a, b in placed)
            body.append(f'<polyline points="{way}" fill="none" stroke="{ink}" stroke-width="1.6"/>')
        for n, (a, b) in enumerate(placed):
            tip = f"<title>{_escaped(series.tips[n])}</title>" if series.tips else ""
            body.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{ink}" fill-opacity="0.85">{tip}</circle>')
    return body


@dataclass(frozen=True, slots=True)
class _Scale:
    """An axis: from where to where, over so many pixels."""

    low: float
    high: float
    base: int
    length: float

    @staticmethod
    def of(values: Sequence[float], base: int, length: float) -> _Scale:
        if not base:
            return _Scale(0.0, 1.05 * max([*values, 0.0]) or 1.0, 0, length)
        logs = [math.log(value, base) for value in values] or [0.0]
        low, high = math.floor(min(logs) - 0.01), math.ceil(max(logs) + 0.01)
        return _Scale(low, high, base, length)

    def place(self, value: float) -> float:
        at = math.log(value, self.base) if self.base else value
        return self.length * (at - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        if not self.base:
            return [(tick, f"{tick:g}") for tick in ticks(self.high, 6)]
        step = max(1, round((self.high - self.low) / 7))
        powers = range(int(self.low), int(self.high) + 1, step)
        return [(float(self.base) ** p, _power(self.base, p)) for p in powers]


def _power(base: int, exponent: int) -> str:
    """`1/4`, `1`, `8`; `1000`, `10^6`."""
    if base == 10:
        return f"{10**exponent:g}" if -2 <= exponent <= 4 else f"10^{exponent}"
    return str(base**exponent) if exponent >= 0 else f"1/{base**-exponent}"


def _escaped(text: str) -> str:
    return escape(plain(text))


def _page(title: str, about: str, width: float, height: float, body: Sequence[str]) -> str:
    width, height = round(max(width, 24 + 9.0 * len(title))), math.ceil(height)
    words = f'<text class="title" x="24" y="28">{_escaped(title)}</text>'
    words += f'<text class="sub" x="24" y="46">{_escaped(about)}</text>'
    page = f'<rect class="page" width="{width}" height="{height}"/>'
    return svg_page(width, height, plain(title), _STYLE, [page, words, *body])
