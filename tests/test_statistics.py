"""Numbers in, numbers out: known answers, and rates by seeded simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gate_evidence import noise

from tasks import statistics


def test_t_quantiles_are_those_of_the_tables():
    assert statistics.t_quantile(0.975, 5) == pytest.approx(2.5706, abs=1e-4)
    assert statistics.t_quantile(0.975, math.inf) == pytest.approx(1.95996, abs=1e-5)


@pytest.mark.parametrize(("n", "length"), [(20, 5), (59, 5), (60, 10), (159, 10), (160, 20), (10_000, 20)])
def test_batch_length(n: int, length: int):
    assert statistics.batch_length(n) == length


def test_too_few_steps_are_refused_by_number():
    with pytest.raises(ValueError, match="19 steps are too few for an interval; 20 are the least"):
        statistics.batch_means(np.arange(19.0))


def test_batch_means_by_hand():
    y = np.repeat([1.0, 2.0, 3.0, 4.0], 5)
    mean = statistics.batch_means(y)
    se = math.sqrt(np.var([1, 2, 3, 4], ddof=1) / 4)
    assert (mean.value, mean.batches, mean.n) == (2.5, 4, 20)
    assert mean.se == pytest.approx(se)
    assert mean.high - mean.value == pytest.approx(3.1824 * se, rel=1e-4)
    with_launch = statistics.batch_means(y, launch_sd=0.1, launches=2)
    assert with_launch.se == pytest.approx(math.sqrt(se**2 + 0.25**2 / 2))
    assert with_launch.df == pytest.approx(3 * ((se**2 + 0.25**2 / 2) / se**2) ** 2)


def test_a_value_that_is_not_finite_is_counted():
    with pytest.raises(ValueError, match="2 of 20 values are not finite"):
        statistics.batch_means([1.0] * 18 + [math.nan, math.inf])


def test_warm_up_is_ten_steps_or_until_the_level_is_reached():
    level = 1 + noise(100, 0.003, 0.3, 1)
    assert statistics.warm_up(level) == 10
    slow = level.copy()
    slow[:31] *= 1.5
    assert 31 <= statistics.warm_up(slow) <= 36


def test_three_way_decision():
    assert statistics.decide(0.91, 0.95, 0.90) == "pass"
    assert statistics.decide(0.80, 0.89, 0.90) == "fail"
    assert statistics.decide(0.89, 0.91, 0.90) == "more"
    assert statistics.decide(-0.02, 0.01, 0.01, better="lower") == "pass"
    assert statistics.decide(0.02, 0.03, 0.01, better="lower") == "fail"
    with pytest.raises(ValueError, match="not finite"):
        statistics.decide(math.nan, 1, 1)


def test_ratio_and_inverse():
    a, b = (statistics.batch_means(v + noise(200, 0.01, 0.0, s)) for v, s in ((2.0, 1), (1.0, 2)))
    r = statistics.ratio(a, b)
    assert r.low < 2.0 < r.high
    assert r.se == pytest.approx(2 * math.hypot(a.se / 2, b.se), rel=0.02)
    flipped = statistics.inverse(a, 10.0)
    assert flipped.value == pytest.approx(10 / a.value)
    assert (flipped.low, flipped.high) == (10 / a.high, 10 / a.low)


def test_pairing_cancels_what_is_shared_and_tells_different_samples():
    shared = np.linspace(5, 4, 60) + noise(60, 0.05, 0.3, 3)
    again = shared + 0.002 + noise(60, 0.0005, 0.0, 4)
    other = np.linspace(5, 4, 60) + noise(60, 0.05, 0.3, 5)
    apart = statistics.paired_difference(again, shared)
    assert apart.low < 0.002 < apart.high
    assert apart.half_width * 0.002 < 0.0005
    assert statistics.noise_left(again, shared) < 0.05
    assert statistics.noise_left(other, shared) == pytest.approx(1.0, abs=0.25)


def test_spikes_are_marked_robustly():
    x = 3 + noise(400, 0.02, 0.5, 6)
    x[[100, 101, 300]] += 1.0
    x[200] = math.nan
    assert np.flatnonzero(statistics.spikes(x)).tolist() == [100, 101, 200, 300]
    assert not statistics.spikes(np.ones(50)).any()
    assert statistics.spikes(np.full(30, math.nan)).all()


# The operating characteristic of GATES 7.1 for a bar of .95, 60 steps, launch sd .5%, phi .5, one launch. The table
# does not name its step sd; 1.5% gives its rows. 400 series a row: a rate's standard error is at most .025.
@pytest.mark.parametrize(
    ("true", "expected"),
    [(0.93, (0.0, 0.94, 0.06)), (0.95, (0.03, 0.03, 0.94)), (0.96, (0.42, 0.0, 0.58)), (0.97, (0.94, 0.0, 0.06))],
)
def test_operating_characteristic_of_the_throughput_decision(true: float, expected: tuple[float, float, float]):
    rng = np.random.default_rng(11)
    found = []
    for i in range(400):
        seconds = (1 + noise(60, 0.015, 0.5, i)) / (true * (1 + 0.005 * rng.normal()))
        speed = statistics.inverse(statistics.batch_means(seconds, launch_sd=0.005), 1.0)
        found.append(statistics.decide(speed.low, speed.high, 0.95))
    rates = tuple(found.count(k) / 400 for k in ("pass", "fail", "more"))
    assert rates == pytest.approx(expected, abs=0.08)


@pytest.mark.parametrize(("phi", "at_most"), [(0.0, 0.08), (0.6, 0.08)])
def test_batch_means_hold_their_error_rate_under_correlation(phi: float, at_most: float):
    def misses(i: int) -> bool:
        m = statistics.batch_means(1 + noise(60, 0.015, phi, 1000 + i))
        return not m.low <= 1 <= m.high

    assert sum(misses(i) for i in range(500)) / 500 <= at_most


def test_batch_shift_is_mccandlish():
    shift, sd = statistics.batch_shift(0.1, 1e6, 2e6, (1e6, 2e6, 4e6))
    assert shift == pytest.approx(0.1 * math.log(2.0 / 1.5))
    assert sd == pytest.approx(0.1 * abs(math.log(3 / 2) - math.log(1.5 / 1.25)) / 4)
    low, middle, high = statistics.critical_batch(20e9)
    assert (low, middle, high) == pytest.approx((2.7e6, 5.4e6, 10.8e6))
    at_a_million = statistics.critical_batch(1e6)
    assert at_a_million[2] / at_a_million[0] > 50  # four decades below the data, the laws disagree
