"""Spikes, step by step as in one; the e-detector: recursion, state, thresholds, two tiers; growth."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from tasks.statistics import (
    EDetector,
    TwoTiers,
    alarm_threshold,
    batch_means,
    fit_baseline,
    spikes,
    warm_up,
)


def plain(detector: EDetector, means: np.ndarray) -> list[float]:
    """The recursion as the paper prints it, without logarithms."""
    lams, said = (0.25, 0.5, 1.0, 2.0), []
    m = dict.fromkeys(lams, 0.0)
    for mean in means:
        z = min((mean - detector.bar) / detector.sd, 3.5)
        m = {lam: (m[lam] + 1) * math.exp(lam * z - lam**2 / 2) for lam in lams}
        said.append(sum(m.values()) / 4)
    return said


def test_the_accumulation_is_the_plain_recursion():
    means = 1 + 0.02 * np.random.default_rng(1).normal(size=300)
    means[150:] += 0.012
    detector = EDetector(bar=1.005, sd=0.02)
    after, logs = detector.update(means)
    assert np.exp(logs) == pytest.approx(plain(detector, means), rel=1e-9)
    assert after.batches == 300
    assert after.log_statistic == pytest.approx(logs[-1])


def test_one_batch_by_hand():
    _, logs = EDetector(bar=1.0, sd=0.1).update([1.1])
    assert logs[0] == pytest.approx(math.log(sum(math.exp(lam - lam**2 / 2) for lam in (0.25, 0.5, 1, 2)) / 4))


@pytest.mark.parametrize("cut", [0, 1, 7, 99, 100])
def test_a_state_written_and_read_goes_on_where_it_was(cut: int):
    means = 1 + 0.02 * np.random.default_rng(2).normal(size=100)
    detector = EDetector(bar=1.0, sd=0.02)
    _, whole = detector.update(means)
    first, before = detector.update(means[:cut])
    last, after = EDetector.from_json(json.loads(json.dumps(first.to_json(), allow_nan=False))).update(means[cut:])
    assert np.concatenate([before, after]) == pytest.approx(whole, rel=1e-9)
    assert last.batches == 100


def test_evidence_far_below_the_bar_is_not_held_against_a_later_slow_down():
    detector = EDetector(bar=1.0, sd=0.01)
    after, _ = detector.update(np.full(50_000, 0.5))
    _, late = after.update(np.full(4, 1.04))
    _, soon = detector.update(np.full(4, 1.04))
    assert late == pytest.approx(soon, abs=0.01)


def test_extreme_batches_neither_overflow_nor_alarm_alone():
    _, logs = EDetector(bar=1.0, sd=1e-300).update([1e300])
    assert logs[0] < alarm_threshold(0.02, 20)
    _, logs = EDetector(bar=1.0, sd=1e-300).update([-1e300] * 10)
    assert np.isfinite(logs).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_batch_that_is_not_finite_is_refused(bad: float):
    with pytest.raises(ValueError, match="1 of 2 batch means are not finite"):
        EDetector(bar=1.0, sd=0.1).update([1.0, bad])
    with pytest.raises(ValueError, match="1 of 20 batch means are not finite"):
        fit_baseline([1.0] * 19 + [bad])


def test_a_baseline_needs_twenty_batches_and_some_spread():
    with pytest.raises(ValueError, match="19 batches are too few for a baseline; 20 are the least"):
        fit_baseline(np.ones(19))
    with pytest.raises(ValueError, match="the sd of 20 batch means is 0"):
        fit_baseline(np.zeros(20))
    assert fit_baseline(np.zeros(20), least_sd=0.001).sd == 0.001
    assert fit_baseline(np.full(20, 5.0)).sd == pytest.approx(0.01)


def test_the_baselines_sd_is_the_greater_of_plain_and_robust():
    means = np.repeat([0.0, 1.0], 10)
    fitted = fit_baseline(means)
    assert (fitted.mean, fitted.sd) == (0.5, pytest.approx(1.4826 * 0.5))
    means = np.zeros(20)
    means[3] = 10.0
    assert fit_baseline(means).sd == pytest.approx(float(np.std(means, ddof=1)))


def test_a_relative_bar_and_one_in_nats():
    baseline = fit_baseline(2 + 0.01 * np.random.default_rng(3).normal(size=20))
    assert EDetector.relative(baseline, 0.01).bar == pytest.approx(baseline.mean * 1.01)
    assert EDetector.additive(baseline, 0.01).bar == pytest.approx(baseline.mean + 0.01)


def test_the_threshold_grows_with_the_stage_and_shrinks_with_the_budget():
    assert math.exp(alarm_threshold(0.01, 500)) == pytest.approx(50_000)
    assert math.exp(alarm_threshold(0.02, 50_000)) == pytest.approx(2_500_000)
    for budget, batches in ((0.0, 5), (1.0, 5), (0.02, 0)):
        with pytest.raises(ValueError, match="budget"):
            alarm_threshold(budget, batches)


def test_with_true_e_values_the_budget_holds():
    """White noise of known level and sd, bar at the level itself: 2,000 stages of 200 batches."""
    z = np.random.default_rng(4).normal(size=(2_000, 200))
    limit = alarm_threshold(0.05, 200)
    alarms = sum((EDetector(bar=0.0, sd=1.0).update(stage)[1] >= limit).any() for stage in z)
    assert 0 < alarms / 2_000 <= 0.05


def test_an_alarm_is_confirmed_by_two_fresh_batches_or_forgotten():
    tiers, said = TwoTiers(EDetector(bar=1.0, sd=0.01), threshold=alarm_threshold(0.02, 100)), []
    for mean in (0.99, 1.02, 1.03, 1.04, 1.04, 1.04):
        tiers, tier = tiers.update(mean)
        said.append(tier)
    assert said == ["quiet", "quiet", "quiet", "confirming", "confirming", "stop"]
    calm = TwoTiers(EDetector(bar=1.0, sd=0.01), threshold=alarm_threshold(0.02, 100))
    said = []
    for mean in (1.03, 1.03, 1.03, 0.99, 0.99, 0.99):
        calm, tier = TwoTiers.from_json(json.loads(json.dumps(calm.to_json(), allow_nan=False))).update(mean)
        said.append(tier)
    assert said[-4:] == ["confirming", "confirming", "quiet", "quiet"]
    assert calm.detector.log_statistic < 0


def test_a_weak_excess_warns_before_it_stops():
    tiers, said = TwoTiers(EDetector(bar=1.0, sd=0.01), threshold=alarm_threshold(0.02, 500)), []
    for _ in range(40):
        tiers, tier = tiers.update(1.008)
        said.append(tier)
    order = [tier for at, tier in enumerate(said) if at == 0 or said[at - 1] != tier]
    assert order[:4] == ["quiet", "warn", "confirming", "stop"]


def rough(n: int, seed: int) -> np.ndarray:
    """White noise with spikes and gaps."""
    rng = np.random.default_rng(seed)
    y = 1 + 0.02 * rng.normal(size=n)
    y[rng.random(n) < 0.03] += rng.exponential(0.3)
    y[rng.random(n) < 0.02] = np.nan
    return y


def marked_one_by_one(y: np.ndarray) -> list[bool]:
    """The rule of GATES 2.6 as it is written there."""
    said = []
    for at, value in enumerate(y):
        past = y[max(0, at - 128) : at]
        past = past[np.isfinite(past)]
        if not np.isfinite(value) or past.size < 10:
            said.append(not np.isfinite(value))
            continue
        center = float(np.median(past))
        spread = 1.4826 * float(np.median(np.abs(past - center))) + 1e-12 + 1e-9 * abs(center)
        said.append((value - center) / spread > 6)
    return said


@pytest.mark.parametrize("seed", range(3))
def test_spikes_are_those_of_the_rule_step_by_step(seed: int):
    y = rough(700, seed)
    found = spikes(y)
    assert found.tolist() == marked_one_by_one(y)
    assert 5 < found.sum() < 70


@pytest.mark.parametrize("cut", [0, 1, 9, 130, 500])
def test_spikes_of_a_stream_in_two_pieces_are_those_of_the_whole(cut: int):
    y = rough(500, 3)
    both = np.concatenate([spikes(y[:cut]), spikes(y[cut:], before=y[:cut])])
    assert both.tolist() == spikes(y).tolist()


def test_numbers_at_the_ends_of_the_scale_are_no_trouble():
    assert not spikes(np.tile([1e308, -1e308], 100)).any()
    assert spikes(np.append(np.full(50, 1e-300), 1e300)).tolist() == [False] * 50 + [True]
    assert spikes([]).size == 0


@pytest.mark.parametrize(
    "work",
    [
        warm_up,
        batch_means,
        spikes,
        lambda y: EDetector(bar=1.01, sd=0.02).update(y),
    ],
    ids=["warm_up", "batch_means", "spikes", "e_detector"],
)
def test_ten_times_the_steps_cost_at_most_twelve_times_the_time(work: Callable[[np.ndarray], object]):
    y = 1 + 0.02 * np.random.default_rng(6).normal(size=100_000)

    def seconds(count: int, repeats: int) -> float:
        began = time.process_time()
        for _ in range(repeats):
            work(y[:count])
        return time.process_time() - began

    work(y)
    small = min(seconds(10_000, 10) for _ in range(5)) / 10
    large = min(seconds(100_000, 1) for _ in range(5))
    assert large <= 12 * small
