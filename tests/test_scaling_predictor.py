"""Throughput at larger scales: known answers, invariances, and rates by seeded simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import statistics
from tasks.statistics.scaling_fit import CANDIDATES, START, ScalingSeries, learn_without
from tasks.statistics.scaling_prior import Cases, log_density


def spread(predictive: statistics.Predictive) -> float:
    return predictive.quantile(0.5) - predictive.quantile(0.05)


def chance(slope: float, gpus: tuple[int, ...], *, bar: float = 0.9, sd: float = 0.0, seed: int = 0) -> float:
    """Chance that 1000 GPUs keep ``bar`` of what a GPU does at the largest scale launched."""
    x = np.log2(np.array(gpus, dtype=float))
    y = slope * x + sd * np.random.default_rng(seed).normal(size=x.size)
    now = y[x == x.max()].mean()
    return statistics.weak_scaling(gpus, np.exp(y), 1000).above(float(now) + math.log(bar))


def test_a_slope_of_five_per_cent_seen_at_8_and_64_is_refused_and_half_a_per_cent_passes():
    assert chance(-0.05, (8, 64)) <= 0.05
    assert chance(-0.005, (8, 64)) >= 0.95


@pytest.mark.parametrize(
    ("slope", "passes", "fails"),
    [(0.0, 0.99, 0), (-0.005, 0.95, 0), (-0.01, 0.80, 0), (-0.02, 0.12, 0), (-0.05, 0, 0.97), (-0.08, 0, 1)],
)
def test_rates_of_probes_at_16_32_64(slope: float, passes: float, fails: float):
    """GATES 4.2's operating characteristic, launches scattering by .75%, but for -5%, which failed 61% there."""
    p = np.array([chance(slope, (16, 32, 64), sd=0.0075, seed=i) for i in range(300)])
    assert (p >= 0.95).mean() == pytest.approx(passes, abs=0.06)
    assert (p <= 0.05).mean() == pytest.approx(fails, abs=0.04)


def test_three_launches_a_scale_decide_more_often_than_one():
    def undecided(gpus: tuple[int, ...], slope: float) -> float:
        p = np.array([chance(slope, gpus, sd=0.0075, seed=i) for i in range(200)])
        return float(((p < 0.95) & (p > 0.05)).mean())

    assert undecided((16,) * 3 + (32,) * 3 + (64,) * 3, -0.01) < undecided((16, 32, 64), -0.01)
    assert undecided((16,) * 3 + (32,) * 3 + (64,) * 3, -0.05) == 0


def test_one_scale_leaves_the_prior_and_a_second_narrows_it():
    prior = replace(statistics.PUBLISHED, break_chance=0.0, tier_break=0.0, exposed_share=1e-12)
    one = statistics.weak_scaling([64], [100.0], 1024, prior=prior)
    assert one.quantile(0.5) == pytest.approx(math.log(100) + 4 * prior.hidden_mean, abs=1e-6)
    assert spread(statistics.weak_scaling([8, 64], [101.0, 100.0], 1024)) < spread(
        statistics.weak_scaling([64], [100.0], 1024)
    )
    assert one.above(one.quantile(0.3)) == pytest.approx(0.7, abs=1e-9)


def test_a_wide_prior_is_least_squares():
    wide = replace(statistics.PUBLISHED, break_chance=0.0, exposed_share=1e-12, hidden_sd=10.0)
    gpus, y = np.array([8.0, 16, 64]), np.array([5.0, 4.9, 4.8])
    line = np.polyfit(np.log2(gpus), y, 1)
    got = statistics.weak_scaling(gpus, np.exp(y), 512, prior=wide).quantile(0.5)
    assert got == pytest.approx(np.polyval(line, 9), abs=1e-5)


def test_it_widens_where_something_is_unknown_and_not_elsewhere():
    flat = spread(statistics.weak_scaling([16, 32], [100, 99.8], 256))
    steep = spread(statistics.weak_scaling([16, 32], [100, 96.0], 256))
    rising = spread(statistics.weak_scaling([16, 32], [100, 104.0], 256))
    bent = spread(statistics.weak_scaling([16, 32, 64], [100, 99.8, 96], 256))
    straight = spread(statistics.weak_scaling([16, 32, 64], [100, 98.6, 97.3], 256))
    unseen = spread(statistics.weak_scaling([4, 8], [100, 99.8], 64))
    assert min(steep, rising) > 1.3 * flat
    assert bent > 1.2 * straight
    assert unseen > 1.2 * spread(statistics.weak_scaling([4, 8], [100, 99.8], 64, tiers=()))
    pod = {"tiers": (8, 256)}
    assert spread(statistics.weak_scaling([16, 32], [100, 99.8], 512, **pod)) > 1.1 * spread(
        statistics.weak_scaling([16, 32], [100, 99.8], 512)
    )


def test_a_rise_is_not_extrapolated():
    assert statistics.weak_scaling([16, 32], [100, 104], 1024).quantile(0.5) < math.log(104)


POINTS = st.lists(
    st.tuples(st.integers(1, 4096), st.floats(1.0, 1e6)), min_size=1, max_size=8, unique_by=lambda point: point[0]
)


@settings(deadline=None, max_examples=60)
@given(points=POINTS, unit=st.floats(1e-6, 1e6), seed=st.integers(0, 99))
def test_neither_unit_nor_order_matters(points: list[tuple[int, float]], unit: float, seed: int):
    gpus, y = np.array(points).T
    target = 2.0 * gpus.max()
    plain = statistics.weak_scaling(gpus, y, target)
    order = np.random.default_rng(seed).permutation(gpus.size)
    other = statistics.weak_scaling(gpus[order], y[order] * unit, target)
    for p in (0.05, 0.5, 0.95):
        assert other.quantile(p) == pytest.approx(plain.quantile(p) + math.log(unit), abs=1e-6)


@settings(deadline=None, max_examples=60)
@given(points=POINTS)
def test_the_forecast_is_a_distribution(points: list[tuple[int, float]]):
    gpus, y = np.array(points).T
    p = statistics.weak_scaling(gpus, y, 2.0 * gpus.max())
    assert p.weights.sum() == pytest.approx(1.0)
    assert p.quantile(0.05) < p.quantile(0.5) < p.quantile(0.95)


def test_the_density_integrates_to_one():
    cases = Cases.of([(np.array([3.0, 4.0]), np.array([5.0, 4.97]), 9.0)])
    grid = np.linspace(0, 10, 200_001)
    many = cases.take(np.zeros(grid.size, dtype=int))
    assert np.exp(log_density(statistics.PUBLISHED, many, grid)).sum() * (grid[1] - grid[0]) == pytest.approx(
        1, abs=1e-3
    )


@pytest.mark.parametrize(
    ("gpus", "throughput", "rise"),
    [
        ([8, 64], [100, 98], 0.98),
        ([64, 8], [120, 100], 1.2),
        ([8, 8, 16], [90, 110, 104], 104 / math.sqrt(9900)),
        ([8], [1], 1.0),
    ],
)
def test_steepest_rise(gpus: list[float], throughput: list[float], rise: float):
    assert statistics.steepest_rise(gpus, throughput) == pytest.approx(rise)


def test_a_family_teaches_nothing_about_itself():
    rng = np.random.default_rng(3)
    gpus = np.array([8.0, 16, 32, 64])

    def series(family: str, slope: float) -> ScalingSeries:
        noise = 0.003 * rng.normal(size=4)
        return ScalingSeries(family, family, gpus, np.exp(slope * np.log2(gpus) + noise))

    others = [series(f, -0.004) for f in "abc"]
    with_good = learn_without([*others, series("e", -0.004)])
    with_bad = learn_without([*others, series("e", -0.2)])
    assert with_good["e"] == with_bad["e"]
    assert with_good["a"] != with_bad["a"]
    assert {prior.exposed_share for prior in with_good.values()} <= {c.exposed_share for c in CANDIDATES}
    assert abs(with_good["e"].hidden_mean + 0.004) < abs(START.exposed_mean)


def test_strong_scaling_finds_work_and_overhead():
    tokens = np.array([64_000.0, 8_000.0])
    p = statistics.strong_scaling(tokens, 1e-4 * tokens + 0.05, 512.0)
    assert math.exp(p.quantile(0.5)) == pytest.approx(0.0512 + 0.05, rel=1e-6)
    with pytest.raises(ValueError, match="hardly differs"):
        statistics.strong_scaling([100, 100], [1, 1.1], 100)


@pytest.mark.parametrize("bad", [([], []), ([8, 64], [1.0]), ([8], [math.nan]), ([8], [0.0])])
def test_predictors_refuse_what_is_not_a_number(bad: tuple[list[float], list[float]]):
    with pytest.raises(ValueError):
        statistics.weak_scaling(*bad, 1000)


@pytest.mark.parametrize("target", [0.0, -8.0, math.nan, math.inf])
def test_predictors_refuse_a_target_that_is_no_scale(target: float):
    with pytest.raises(ValueError, match="no scale"):
        statistics.weak_scaling([8], [1.0], target)
