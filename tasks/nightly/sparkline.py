"""Sixty nights of one series as a picture the size of a word: good nights, bad ones, breaks of level, the band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from tasks.nightly.judge import Series
from tasks.report.pictures import GREY, INKS, TONES, Scale, svg
from tasks.statistics.change_points import FEWEST_NIGHTS, ChangeRule, level_changes

SHOWN = 60
_WIDTH, _HEIGHT = 180, 40


@dataclass(frozen=True)
class Dot:
    """One night: its date, value, and whether it lies in an incident."""

    night: str
    value: float
    bad: bool


def sparkline(dots: Sequence[Dot], series: Series, level: float | None) -> Markup:
    """Return the newest sixty nights; the band is what the present level may move by before it counts."""
    shown = list(dots)[-SHOWN:]
    if not shown:
        return Markup("")
    values = [dot.value for dot in shown]
    reach = abs(level) * series.least_change if level else 0.0
    around = [*values, *([level - reach, level + reach] if level is not None else [])]
    low, high = min(around), max(around)
    room = (high - low) * 0.1 or abs(high) * 0.01 or 1.0
    across = Scale(0, max(1, SHOWN - 1), 4, _WIDTH - 4)
    up = Scale(low - room, high + room, _HEIGHT - 3, 3)
    places = [(across.at(SHOWN - len(shown) + index), up.at(value)) for index, value in enumerate(values)]
    parts = []
    if level is not None:
        top, bottom = up.at(level + reach), up.at(level - reach)
        parts.append(
            f'<rect x="0" width="{_WIDTH}" y="{top}" height="{max(1.0, bottom - top):.1f}" fill="{TONES["PASS"]}" '
            'opacity=".13"/>'
        )
    for index in breaks(values, series):
        at = places[index][0] - (across.end - across.start) / (SHOWN - 1) / 2
        said = escape(f"the level changed in night {shown[index].night}")
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{_HEIGHT}" stroke="{TONES["FAIL"]}" stroke-width="1.2" '
            f'stroke-dasharray="3 2"><title>{said}</title></line>'
        )
    path = " ".join(f"{x},{y}" for x, y in places)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{GREY}" stroke-width="1"/>')
    for dot, (x, y) in zip(shown, places, strict=True):
        ink = TONES["FAIL"] if dot.bad else INKS[0]
        said = escape(f"{dot.night}: {dot.value:.6g} {series.unit}")
        parts.append(f'<circle cx="{x}" cy="{y}" r="1.9" fill="{ink}"><title>{said}</title></circle>')
    return svg(_WIDTH, _HEIGHT, f"{series.name} of {len(shown)} nights", parts)


def breaks(values: Sequence[float], series: Series) -> list[int]:
    """Return the indexes at which the level of the shown nights changed, bad ones among them."""
    if len(values) < FEWEST_NIGHTS:
        return []
    return [point.index for point in level_changes(values, ChangeRule(least_change=series.least_change))]
