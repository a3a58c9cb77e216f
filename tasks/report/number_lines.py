"""Numbers on a line as inline SVG: a check's estimate, interval and limit; a forecast's interval and what came."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from tasks.report.pictures import GREY, TEXT, TONES, Format, Scale, anchor, svg, text

Side = Literal["above", "below"]
_BAD = "#b3261e"


@dataclass(frozen=True)
class Claim:
    """What a check asks, in numbers: the limit, on which side of it is good, or a limit on the size of the estimate."""

    limit: float | None
    good: Side | None = None
    size: bool = False  # good is from -limit to +limit

    @property
    def marks(self) -> list[float]:
        """Where the limit stands on the axis."""
        if self.limit is None or not math.isfinite(self.limit):
            return []
        return [-self.limit, self.limit] if self.size else [self.limit]


def check_picture(
    outcome: str, estimate: float | None, interval: tuple[float, float] | None, claim: Claim, number: Format
) -> Markup:
    """Return estimate, interval and limit on one axis; the failing side is shaded, where it is known."""
    if estimate is None or not math.isfinite(estimate):
        return Markup("")
    ends = [v for v in (interval or ()) if math.isfinite(v)]
    known = [estimate, *ends, *claim.marks]
    low, high = min(known), max(known)
    room = (high - low) or abs(high) or 1.0
    scale = Scale(low - 0.25 * room, high + 0.25 * room, 8, 312)
    ink = TONES.get(outcome, TEXT)
    parts = [f'<line x1="8" x2="312" y1="30" y2="30" stroke="{GREY}"/>', *_limits(scale, claim, number)]
    if interval is not None:
        a, b = (scale.at(v) for v in interval)
        parts.append(f'<line x1="{a}" x2="{b}" y1="30" y2="30" stroke="{ink}" stroke-width="7" opacity=".35"/>')
        parts += [f'<line x1="{x}" x2="{x}" y1="24" y2="36" stroke="{ink}" stroke-width="1.5"/>' for x in (a, b)]
    x = scale.at(estimate)
    parts.append(f'<circle cx="{x}" cy="30" r="4.5" fill="{ink}"/>')
    parts.append(text(x, 51, number(estimate), anchor(x, 320), ink))
    if len(ends) == 2 and ends[0] != ends[1]:
        parts.append(text(x, 66, f"{number(ends[0])} to {number(ends[1])}", anchor(x, 320), TEXT))
    said = f"estimate {number(estimate)}" + (f", limit {number(claim.limit)}" if claim.limit is not None else "")
    return svg(320, 70, said, parts)


def _limits(scale: Scale, claim: Claim, number: Format) -> list[str]:
    """Return the limit's marks with their label, and the shade of where a check fails."""
    xs = [scale.at(value) for value in claim.marks]
    bad: list[tuple[float, float]] = []
    if xs and claim.size:
        bad = [(8.0, xs[0]), (xs[-1], 312.0)]
    elif xs and claim.good is not None:
        bad = [(8.0, xs[0])] if claim.good == "above" else [(xs[0], 312.0)]
    parts = [
        f'<rect x="{a:.1f}" y="20" width="{max(0.0, b - a):.1f}" height="20" fill="{_BAD}" opacity=".09"/>'
        for a, b in bad
    ]
    parts += [f'<line x1="{x}" x2="{x}" y1="18" y2="42" stroke="#222" stroke-width="1.5"/>' for x in xs]
    if xs and claim.limit is not None:
        said = f"limit {'±' if claim.size else ''}{number(claim.limit)}"
        parts.append(text(xs[-1], 13, said, anchor(xs[-1], 320), "#222"))
    return parts


@dataclass(frozen=True)
class Foretold:
    """One line of a score: what, its 90% interval and median, what came, and that in words."""

    name: str
    low: float
    median: float
    high: float
    outcome: float
    says: str

    @property
    def inside(self) -> bool:
        """Whether it came inside the interval."""
        return self.low <= self.outcome <= self.high


_LEFT, _RIGHT, _ROOM = 262.0, 470.0, 52.0  # every interval is drawn from _LEFT to _RIGHT, outcomes up to _ROOM beyond


def score_picture(rows: Sequence[Foretold]) -> Markup:
    """Return forecasts and outcomes, each on its own scale: the bar is its interval, the dot what came.

    An outcome far outside stands at the edge as an arrow.
    """
    rows = [row for row in rows if row.high > row.low and math.isfinite(row.outcome)]
    if not rows:
        return Markup("")
    parts = [text((_LEFT + _RIGHT) / 2, 12, "90% interval of the forecast", "middle")]
    for place, row in enumerate(rows):
        parts += _score_line(row, 34.0 + 26.0 * place)
    return svg(720, 34 + 26 * len(rows), "forecast against outcome", parts)


def _score_line(row: Foretold, y: float) -> list[str]:
    scale = Scale(row.low, row.high, _LEFT, _RIGHT)
    middle = scale.at(row.median)
    part = (row.outcome - row.low) / (row.high - row.low)
    x = round(min(_RIGHT + _ROOM, max(_LEFT - _ROOM, _LEFT + part * (_RIGHT - _LEFT))), 1)
    ink = TONES["PASS" if row.inside else "FAIL"]
    parts = [
        text(8, y + 4, row.name, "start"),
        f'<line x1="{_LEFT - _ROOM}" x2="{_RIGHT + _ROOM}" y1="{y}" y2="{y}" stroke="#e7eaee"/>',
        f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}" stroke="{GREY}" stroke-width="10"/>',
        f'<line x1="{middle}" x2="{middle}" y1="{y - 7}" y2="{y + 7}" stroke="{TEXT}" stroke-width="1.5"/>',
        text(536, y + 4, row.says, "start", ink),
    ]
    if abs(x - (_LEFT + _RIGHT) / 2) < (_RIGHT - _LEFT) / 2 + _ROOM:
        return [*parts, f'<circle cx="{x}" cy="{y}" r="5.5" fill="{ink}"/>']
    tip = 7 if part > 0.5 else -7
    return [*parts, f'<path d="M{x - tip},{y - 6} L{x},{y} L{x - tip},{y + 6} Z" fill="{ink}"/>']
