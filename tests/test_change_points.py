"""Literal series and the nights at which they break."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gate_evidence import noise
from scipy.stats import ttest_ind

from tasks.statistics.change_points import ChangePoint, ChangeRule, level_changes, p_of_equal_levels


@pytest.mark.parametrize(
    ("series", "breaks"),
    [
        # a level that does not change
        ([4.1, 4.0, 4.2, 4.1, 4.0, 4.1, 4.2, 4.0, 4.1, 4.1, 4.0, 4.2], []),
        ([7.0] * 30, []),
        # one step down, one step up
        ([4.1, 4.0, 4.2, 4.1, 4.0, 4.1, 4.2, 3.1, 3.0, 3.2, 3.1, 3.0, 3.1], [7]),
        ([3.1, 3.0, 3.2, 3.1, 3.0, 3.1, 4.1, 4.0, 4.2, 4.1, 4.0, 4.1, 4.2], [6]),
        # without any noise
        ([5.0] * 9 + [5.2] * 6, [9]),
        # two nights are a level, one is not
        ([9.0, 9.1, 8.9, 9.0, 9.1, 9.0, 8.9, 9.1, 9.0, 9.0, 8.9, 9.1, 7.5, 7.6], [12]),
        ([9.0, 9.1, 8.9, 9.0, 9.1, 9.0, 8.9, 9.1, 9.0, 9.0, 8.9, 9.1, 9.0, 7.5], []),
        # a single bad night in the middle
        ([9.0, 9.1, 8.9, 9.0, 9.1, 9.0, 4.5, 9.1, 9.0, 9.0, 8.9, 9.1, 9.0, 9.1], []),
        # there and back again
        ([6.0, 6.1, 5.9, 6.0, 6.1, 6.0, 5.9, 6.1, 8.0, 8.1, 7.9, 8.0, 8.1, 8.0, 6.0, 6.1, 5.9, 6.0, 6.1, 6.0], [8, 14]),
        # three levels, in both directions
        ([2.0, 2.1, 1.9, 2.0, 2.1, 2.0, 1.9, 3.0, 3.1, 2.9, 3.0, 3.1, 3.0, 5.0, 5.1, 4.9, 5.0, 5.1, 5.0], [7, 13]),
        # below zero
        ([-4.1, -4.0, -4.2, -4.1, -4.0, -4.1, -3.1, -3.0, -3.2, -3.1, -3.0, -3.1], [6]),
    ],
)  # fmt: skip
def test_the_breaks_of_a_series(series: list[float], breaks: list[int]):
    assert [point.index for point in level_changes(series)] == breaks


def test_a_change_says_its_levels_and_size():
    (point,) = level_changes([4.1, 4.0, 4.2, 4.1, 4.0, 4.1, 4.2, 3.1, 3.0, 3.2, 3.1, 3.0, 3.1])
    assert (point.index, point.before) == (7, pytest.approx(4.1))
    assert point.after == pytest.approx(3.08333, abs=1e-5)
    assert point.change == pytest.approx(3.08333 / 4.1 - 1, abs=1e-5)
    assert point.p_value < 1e-6
    assert ChangePoint(3, 0.0, 2.0, 0.0).change == math.inf
    assert ChangePoint(3, 0.0, 0.0, 1.0).change == 0.0


def test_a_change_smaller_than_asked_is_none():
    y = np.concatenate([np.full(20, 100.0), np.full(20, 101.5)]) + noise(40, 0.1, 0.0, 1)
    assert level_changes(y) == []
    assert [point.index for point in level_changes(y, ChangeRule(least_change=0.01))] == [20]


def test_the_t_test_is_students_where_nights_are_independent():
    left, right = np.array([1.0, 2, 3, 4]), np.array([3.0, 4, 5, 6, 7])
    assert p_of_equal_levels(left, right, correlated=False) == pytest.approx(ttest_ind(left, right).pvalue)


def test_one_night_may_be_a_level_where_it_is_asked():
    y = [9.0, 9.1, 8.9, 9.0, 9.1, 9.0, 4.5, 9.1, 9.0, 9.0, 8.9, 9.1, 9.0, 9.1]
    assert [point.index for point in level_changes(y, ChangeRule(least_segment=1))] == [6, 7]
    assert [point.index for point in level_changes([1.0] * 6 + [2.0] * 6, ChangeRule(least_segment=1))] == [6]


def test_noise_that_lasts_for_nights_counts_for_less():
    walk = 1 + noise(60, 0.01, 0.7, 2)
    plain = p_of_equal_levels(walk[:30], walk[30:] + 0.01, correlated=False)
    assert p_of_equal_levels(walk[:30], walk[30:] + 0.01, correlated=True) > 10 * plain


def test_a_far_past_does_not_hide_the_present():
    y = np.concatenate([np.full(300, 10.0), np.full(60, 20.0), np.full(6, 21.0)]) + noise(366, 0.1, 0.0, 3)
    assert [point.index for point in level_changes(y)] == [300, 360]


def test_rates_of_false_alarm_and_of_sight():
    """300 series of 50 nights, 1% scatter: an alarm in at most 3%; a fall of 3% seen after 5 nights in 85%."""
    quiet = [1 + noise(50, 0.01, phi, seed) for phi in (0.0, 0.3, 0.6) for seed in range(100)]
    assert sum(bool(level_changes(series)) for series in quiet) <= 9
    fallen = [1 + noise(35, 0.01, 0.0, 500 + seed) for seed in range(300)]
    for series in fallen:
        series[30:] -= 0.03
    seen = [any(abs(point.index - 30) <= 1 for point in level_changes(series)) for series in fallen]
    assert sum(seen) / 300 >= 0.85


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0] * 9, "9 values are too few to find a change of level in; 10 are the least"),
        ([], "0 values are too few"),
        ([1.0] * 9 + [math.nan, math.inf], "2 of 11 values are not finite"),
    ],
)
def test_what_cannot_be_searched_is_refused(values: list[float], said: str):
    with pytest.raises(ValueError, match=said):
        level_changes(values)


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1e9, 1e300])
def test_breaks_do_not_depend_on_the_unit(scale: float):
    y = np.array([4.1, 4.0, 4.2, 4.1, 4.0, 4.1, 4.2, 3.1, 3.0, 3.2, 3.1, 3.0, 3.1])
    assert [point.index for point in level_changes(y * scale)] == [7]
