"""Pictures of a report as inline SVG: numbers in, markup out; no files, no script, nothing loaded from outside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

TONES = {
    "PASS": "#1a7f4b",
    "FAIL": "#b3261e",
    "NEED_MORE_DATA": "#8a5a00",
    "INVALID": "#6b3fa0",
    "NOT_COMPARABLE": "#5b6770",
}
"""Colour of an outcome; words and signs say the same, for those who see no colours."""

INKS = ("#1f5fbf", "#c2571a", "#0f8a8a", "#8c3d97", "#5b6770")
GREY, TEXT = "#c9ced6", "#4a5361"
_COLUMNS = 500  # more points a curve than this are drawn as least and greatest a column
Format = Callable[[float], str]


@dataclass(frozen=True)
class Curve:
    """One curve: its name, finite points in order of x, and how it is drawn."""

    name: str
    points: Sequence[tuple[float, float]]
    ink: str
    dashed: bool = False
    faint: bool = False
    dots: bool = False
    wide: bool = False  # a range, drawn as a bar from end to end


@dataclass(frozen=True)
class Band:
    """A shaded range: of x (``upright``) or of y."""

    name: str
    low: float
    high: float
    ink: str
    upright: bool = False


@dataclass(frozen=True)
class Mark:
    """A moment on the x axis, drawn as an upright line with its name beside it."""

    name: str
    at: float
    ink: str


@dataclass(frozen=True)
class Scale:
    """From values to pixels along one axis."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value, kept inside the frame."""
        part = (value - self.low) / (self.high - self.low)
        return round(self.start + min(1.0, max(0.0, part)) * (self.end - self.start), 1)


def chart(
    curves: Sequence[Curve],
    bands: Sequence[Band] = (),
    marks: Sequence[Mark] = (),
    *,
    x: str,
    y: str,
    x_number: Format,
    y_number: Format,
) -> Markup:
    """Return curves over one pair of axes with their names beside them; empty where there is nothing to draw."""
    drawn = [c for c in curves if c.points]
    if not drawn:
        return Markup("")
    xs, ys = [p[0] for c in drawn for p in c.points], [p[1] for c in drawn for p in c.points]
    ys += [v for band in bands if not band.upright for v in (band.low, band.high)]
    across, up = Scale(*_padded(xs, 0.0), 64, 704), Scale(*_padded(ys, 0.08), 250, 14)
    parts = _axes(across, up, x, y, x_number, y_number)
    for band in bands:
        parts.append(_band(band, across, up))
    for curve in drawn:
        parts.append(_line(curve, across, up))
    for place, mark in enumerate(marks):
        parts += _mark(mark, across, place)
    named = [(c.name, c.ink, c.dashed) for c in drawn] + [(b.name, b.ink, False) for b in bands]
    named = list(dict.fromkeys(named))
    parts += _legend(named)
    rows = -(-len(named) // 3)
    return svg(720, 302 + 20 * rows, f"{y} over {x}", parts)


def _axes(across: Scale, up: Scale, x: str, y: str, x_number: Format, y_number: Format) -> list[str]:
    parts = []
    for value in _ticks(up.low, up.high):
        at = up.at(value)
        parts.append(f'<line x1="64" x2="704" y1="{at}" y2="{at}" stroke="#e7eaee"/>')
        parts.append(text(58, at + 4, y_number(value), "end"))
    for value in _ticks(across.low, across.high):
        parts.append(text(across.at(value), 267, x_number(value), "middle"))
    parts.append(f'<line x1="64" x2="704" y1="250" y2="250" stroke="{GREY}"/>')
    parts.append(text(384, 284, x, "middle"))
    parts.append(
        f'<text transform="translate(12 132) rotate(-90)" text-anchor="middle" fill="{TEXT}">{escape(y)}</text>'
    )
    return parts


def _band(band: Band, across: Scale, up: Scale) -> str:
    if band.upright:
        left, right = across.at(band.low), across.at(band.high)
        place = f'x="{left}" y="14" width="{max(1.0, right - left):.1f}" height="236"'
    else:
        top, bottom = up.at(band.high), up.at(band.low)
        place = f'x="64" y="{top}" width="640" height="{max(1.5, bottom - top):.1f}"'
    return f'<rect {place} fill="{band.ink}" opacity=".12"/>'


def _mark(mark: Mark, across: Scale, place: int) -> list[str]:
    """Return one upright line; names that follow one another stand at different heights."""
    at = across.at(mark.at)
    line = f'<line x1="{at}" x2="{at}" y1="14" y2="250" stroke="{mark.ink}" stroke-width="1.5"'
    end, beside = ("end", at - 5) if at > 500 else ("start", at + 5)
    return [f'{line} stroke-dasharray="3 3"/>', text(beside, 24 + 14 * (place % 6), mark.name, end, mark.ink)]


def _line(curve: Curve, across: Scale, up: Scale) -> str:
    if curve.dots:
        spots = (f'<circle cx="{across.at(a)}" cy="{up.at(b)}" r="3.5" fill="{curve.ink}"/>' for a, b in curve.points)
        return "".join(spots)
    path = " ".join(f"{across.at(a)},{up.at(b)}" for a, b in thinned(curve.points))
    dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
    strength = ' opacity=".55"' if curve.faint else ' opacity=".35"' if curve.wide else ""
    width = 9 if curve.wide else 1.6
    return f'<polyline points="{path}" fill="none" stroke="{curve.ink}" stroke-width="{width}"{dash}{strength}/>'


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points as they are, or of many the least and greatest of each column, so that no spike is lost."""
    if len(points) <= 2 * _COLUMNS:
        return list(points)
    kept: list[tuple[float, float]] = []
    for column in range(_COLUMNS):
        part = points[column * len(points) // _COLUMNS : (column + 1) * len(points) // _COLUMNS]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return kept


def _legend(named: Iterable[tuple[str, str, bool]]) -> list[str]:
    parts = []
    for place, (name, ink, dashed) in enumerate(named):
        left, top = 64 + 216 * (place % 3), 304 + 20 * (place // 3)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        parts.append(
            f'<line x1="{left}" x2="{left + 20}" y1="{top}" y2="{top}" stroke="{ink}" stroke-width="3"{dash}/>'
        )
        parts.append(text(left + 26, top + 4, name, "start"))
    return parts


def _ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    width = next(unit * step for step in (1, 2, 5, 10) if unit * step >= rough)
    return [n * width for n in range(math.ceil(low / width), math.floor(high / width) + 1)]


def _padded(values: Sequence[float], share: float) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) or max(1e-9, abs(high) * 0.1)
    return (low - share * room, high + share * room) if high > low else (low - room, high + room)


def text(x: float, y: float, words: str, anchor: str, ink: str = TEXT) -> str:
    """Return words at a place, escaped; ``anchor`` is start, middle or end."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{ink}">{escape(words)}</text>'


def anchor(x: float, width: float) -> str:
    """Return the anchor with which words at ``x`` stay inside a picture of this width."""
    return "start" if x < width * 0.2 else "end" if x > width * 0.8 else "middle"


def svg(width: int, height: int, title: str, parts: Iterable[str]) -> Markup:
    """Return the picture; every word in its parts must have been escaped."""
    start = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
    return Markup(start + "".join(parts) + "</svg>")  # noqa: S704  # every word in the parts went through escape
