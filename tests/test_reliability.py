"""Checkpoint intervals, survival and effective training time against closed values and a simulated job."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tasks.statistics import reliability

HOUR = 3600.0


@pytest.mark.parametrize(("mtbf_hours", "minutes"), [(8, 25), (29, 48)])
def test_the_interval_for_saves_of_forty_seconds(mtbf_hours: float, minutes: float):
    """GATES 5: delta 40 s; 25 min at 8 h, 48 min at 29 h, by Young; Daly's is 27 s shorter at both."""
    young = reliability.young_interval_seconds(40, mtbf_hours * HOUR)
    daly = reliability.save_interval_seconds(40, mtbf_hours * HOUR)
    assert round(young / 60) == minutes
    assert round(young - daly) == 27


def test_daly_by_hand_and_at_its_end():
    # d = 2, M = 100: sqrt(400) = 20, d/2M = .01: 20 (1 + .1/3 + .01/9) - 2
    assert reliability.save_interval_seconds(2, 100) == pytest.approx(20 * (1 + 0.1 / 3 + 0.01 / 9) - 2)
    assert reliability.save_interval_seconds(300, 100) == 100


def test_a_cluster_of_125_nodes():
    assert reliability.job_mtbf_hours(125, 2.34) == pytest.approx(82.05, abs=0.01)
    assert reliability.job_mtbf_hours(125, 6.5) == pytest.approx(29.54, abs=0.01)


def test_survival():
    assert reliability.uninterrupted(24, 8) == pytest.approx(math.exp(-3))
    assert reliability.uninterrupted(0, 8) == 1


def test_effective_training_time_by_hand():
    assert reliability.expected_ettr(10_000, 100, 800, 8) == pytest.approx((1 - 500 / 10_000) / 1.01)
    assert reliability.expected_ettr(100, 300, 800, 8) == 0


def test_effective_training_time_of_a_simulated_job():
    """A job that fails at random, restarts and repeats what was not saved: 2,000 failures."""
    mtbf, restart, interval, save = 8 * HOUR, 600.0, 1500.0, 40.0
    lives = np.random.default_rng(1).exponential(mtbf, 2_000)
    trained = np.floor(lives / (interval + save)) * interval
    share = trained.sum() / (lives + restart).sum()
    assert reliability.expected_ettr(mtbf, restart, interval, save) == pytest.approx(share, abs=0.005)


def test_dalys_interval_is_the_best_of_the_simulated_ones():
    lives = np.random.default_rng(2).exponential(8 * HOUR, 20_000)
    save = 40.0

    def share(interval: float) -> float:
        return float((np.floor(lives / (interval + save)) * interval).sum() / lives.sum())

    best = reliability.save_interval_seconds(save, 8 * HOUR)
    assert share(best) > share(best / 3)
    assert share(best) > share(best * 3)


def test_no_failure_seen_is_little_shown():
    assert reliability.highest_rate(0, 8) * 1000 == pytest.approx(374.5, abs=0.1)
    assert reliability.highest_rate(5, 100) * 100 == pytest.approx(10.51, abs=0.01)


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf])
def test_what_is_no_positive_number_is_named(bad: float):
    with pytest.raises(ValueError, match=r"mtbf_seconds is .*; it must be a positive number"):
        reliability.save_interval_seconds(40, bad)
    with pytest.raises(ValueError, match="mtbf_hours is"):
        reliability.uninterrupted(1, bad)
