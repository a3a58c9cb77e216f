"""Pictures and words of a report: nothing lost, nothing outside its frame, numbers as a person reads them."""

from __future__ import annotations

import re

import pytest

from tasks.report import pictures, words
from tasks.report.number_lines import Claim, Foretold, check_picture, score_picture


def test_pictures_keep_spikes_and_stay_inside() -> None:
    points = [(float(n), 1.0) for n in range(100_000)]
    points[54_321] = (54_321.0, 9.0)
    kept = pictures.thinned(points)
    assert (54_321.0, 9.0) in kept and len(kept) <= 1000
    curve = pictures.Curve("loss <of> one", [(1.0, 2.0), (1.0, 2.0)], "#000")
    drawn = pictures.chart([curve], x="x", y="y", x_number=words.short, y_number=words.short)
    assert "loss &lt;of&gt; one" in drawn and "nan" not in drawn
    assert pictures.chart([], x="x", y="y", x_number=words.short, y_number=words.short) == ""


@pytest.mark.parametrize(
    ("outcome", "interval"),
    [("PASS", (-float("inf"), 0.5)), ("FAIL", None), ("INVALID", (0.2, 0.2)), ("NEED_MORE_DATA", (0.1, 0.4))],
)
def test_check_pictures(outcome: str, interval: tuple[float, float] | None) -> None:
    for claim in (Claim(0.3), Claim(0.3, "above"), Claim(0.3, "below"), Claim(0.3, size=True), Claim(None)):
        drawn = check_picture(outcome, 0.3, interval, claim, words.number)
        xs = [float(x) for x in re.findall(r'(?:cx|x1|x2|\bx)="([^"]+)"', drawn)]
        assert xs and all(0 <= x <= 320 for x in xs)
        assert drawn.count("limit ") == 2 * (claim.limit is not None)
        assert check_picture(outcome, None, interval, claim, words.number) == ""


def test_a_score_is_drawn_inside_outside_and_far_away() -> None:
    rows = [Foretold(f"{at}", 1.0, 2.0, 3.0, at, "said") for at in (2.5, 3.2, 1e9, -1e9)]
    drawn = score_picture([*rows, Foretold("flat", 1.0, 1.0, 1.0, 1.0, "not drawn")])
    assert drawn.count("<circle") == 2 and drawn.count("<path") == 2 and "flat" not in drawn
    places = [float(x) for x in re.findall(r'(?:cx|x1|x2)="([^"]+)"', drawn)]
    assert all(0 <= x <= 720 for x in places)
    assert score_picture([]) == ""


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.5, "of gpus_8's", "50.0%"), (12345.6, "", "12,346"), (0.00001, "nats", "1.0e-05"), (3.0, "", "3"),
        (None, "", "unknown"), (float("inf"), "", "inf"), (0.01234567, "nats", "0.01235"),
    ],
)  # fmt: skip
def test_numbers(value: float | None, unit: str, said: str) -> None:
    assert words.number(value, unit) == said
