"""The e-detector against a running-mean confidence sequence and a fixed 5%: false alarms and delays, side by side.

Noise as of step times: AR(1) of 1.5%, and one step in a hundred longer by an exponential of 10% (heavy: 20%). The first
20 batches of 20 give the baseline, 10,000 steps follow. Settings were chosen on other seeds than those scored here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from drift_oracle import Noise
from drift_oracle import delays as of_oracle
from scipy.signal import lfilter
from scipy.stats import binomtest

from tasks.statistics import EDetector, TwoTiers, alarm_threshold, fit_baseline

SD, BATCH, BASELINE, STEPS, ONSET = 0.015, 20, 400, 10_000, 4_000
PHIS = (0.0, 0.3, 0.6, 0.9)
SLOWER = (0.02, 0.03, 0.05, 0.10)
RUNS = 400  # of each phi
BUDGET = 0.01
SEED = 20_261_203
Detector = Callable[[np.ndarray], np.ndarray]
"""From batch means (runs x batches, the first 20 being the baseline) to the alarms of the batches that follow."""


def batches(runs: int, steps: int, phi: float, spike: float, seed: int) -> np.ndarray:
    """Batch means of stages whose step takes 1 s."""
    rng = np.random.default_rng((SEED, seed, int(10 * phi), int(100 * spike)))
    found = np.empty((runs, (BASELINE + steps) // BATCH))
    for run in range(runs):
        shocks = rng.normal(size=BASELINE + steps) * math.sqrt(1 - phi**2)
        shocks[0] /= math.sqrt(1 - phi**2)
        y = 1 + SD * lfilter([1.0], [1.0, -phi], shocks)
        spiked = rng.integers(0, y.size, y.size // 100)
        y[spiked] += rng.exponential(spike, spiked.size)
        found[run] = y.reshape(-1, BATCH).mean(axis=1)
    return found


def e_detector(tolerance: float) -> Detector:
    def alarms(means: np.ndarray) -> np.ndarray:
        head = BASELINE // BATCH
        limit = alarm_threshold(BUDGET, means.shape[1] - head)
        detectors = [EDetector.relative(fit_baseline(run[:head]), tolerance) for run in means]
        return np.array([d.update(run[head:])[1] >= limit for d, run in zip(detectors, means, strict=True)])

    return alarms


def confidence_sequence(tolerance: float) -> Detector:
    """One-sided asymptotic confidence sequence of the running mean (Waudby-Smith et al. 2024), tightest at 100."""

    def alarms(means: np.ndarray) -> np.ndarray:
        head = BASELINE // BATCH
        bar = means[:, :head].mean(axis=1, keepdims=True) * (1 + tolerance)
        y = means[:, head:]
        t = np.arange(1, y.shape[1] + 1)
        mean = y.cumsum(axis=1) / t
        variance = np.maximum((y**2).cumsum(axis=1) / t - mean**2, 0)
        r = (-2 * math.log(BUDGET) + math.log(1 - 2 * math.log(BUDGET))) / 100
        radius = np.sqrt(variance * 2 * (t * r + 1) / (t**2 * r) * np.log(1 + np.sqrt(t * r + 1) / (2 * BUDGET)))
        return (mean - radius > bar) & (t >= 10)

    return alarms


def fixed(share: float) -> Detector:
    """A batch slower than the baseline by ``share``, as regression checks with a percentage ask."""

    def alarms(means: np.ndarray) -> np.ndarray:
        head = BASELINE // BATCH
        return means[:, head:] > (1 + share) * means[:, :head].mean(axis=1, keepdims=True)

    return alarms


DETECTORS = {
    "e-detector, tolerance 1%": e_detector(0.01),
    "e-detector, tolerance 2%": e_detector(0.02),
    "e-detector, tolerance 0": e_detector(0.0),
    "confidence sequence, tolerance 1%": confidence_sequence(0.01),
    "confidence sequence, tolerance 0": confidence_sequence(0.0),
    "fixed 5% on batch means": fixed(0.05),
}


@dataclass(frozen=True)
class Score:
    """False alarms of each run, and steps from onset to alarm (inf: never) by slow-down."""

    false: np.ndarray
    delays: dict[float, np.ndarray]


def score(detector: Detector, quiet: np.ndarray) -> Score:
    first = ONSET // BATCH
    delays = {}
    for slower in SLOWER:
        slowed = quiet.copy()
        slowed[:, BASELINE // BATCH + first :] *= 1 + slower
        alarms = detector(slowed)[:, first:]
        delays[slower] = np.where(alarms.any(axis=1), BATCH * (alarms.argmax(axis=1) + 1.0), np.inf)
    return Score(detector(quiet).any(axis=1), delays)


def line(name: str, phi: str, of: Score) -> str:
    count, runs = int(of.false.sum()), of.false.size
    interval = binomtest(count, runs).proportion_ci(0.95, method="exact")
    rate = f"{count / runs:6.2%} ({interval.low:.2%}..{interval.high:.2%})"
    shown = [
        "  ".join(f"{v:>7,.0f}" if math.isfinite(v) else "  never" for v in at_quantiles(of.delays[slower]))
        for slower in SLOWER
    ]
    return f"{name:34} {phi:>4} {rate:24} " + "   ".join(shown)


def at_quantiles(delays: np.ndarray) -> tuple[float, float]:
    """Median and 90th percentile; a run without alarm counts as later than all."""
    ordered = np.sort(delays)
    return float(ordered[math.ceil(0.5 * ordered.size) - 1]), float(ordered[math.ceil(0.9 * ordered.size) - 1])


@pytest.mark.parametrize("spike", [0.1, 0.2], ids=["spikes", "heavy spikes"])
def test_false_alarms_and_delays(spike: float):
    scores: dict[str, list[Score]] = {name: [] for name in DETECTORS}
    for phi in PHIS:
        quiet = batches(RUNS, STEPS, phi, spike, 0)
        for name, detector in DETECTORS.items():
            scores[name].append(score(detector, quiet))
    print(
        f"\n\n{STEPS:,} steps, spikes of {spike:.0%}; steps from onset to alarm: median and 90th percentile at", end=""
    )
    print(f" {', '.join(f'{s:.0%}' for s in SLOWER)}\n{'':34} {'phi':>4} false alarms (95% interval)")
    pooled = {}
    for name, each in scores.items():
        for phi, one in zip(PHIS, each, strict=True):
            print(line(name, f"{phi:g}", one))
        together = {slower: np.concatenate([one.delays[slower] for one in each]) for slower in SLOWER}
        pooled[name] = Score(np.concatenate([one.false for one in each]), together)
        print(line(name, "all", pooled[name]))
    ours = pooled["e-detector, tolerance 1%"]
    median = {slower: at_quantiles(ours.delays[slower])[0] for slower in SLOWER}
    for phi, one in zip(PHIS, scores["e-detector, tolerance 1%"], strict=True):
        for slower, asked in ((0.03, 100), (0.05, 60)):
            if at_quantiles(one.delays[slower])[0] > asked:
                print(f"MISS at phi {phi:g} alone: {slower:.0%} takes {at_quantiles(one.delays[slower])[0]:.0f} steps")
    assert ours.false.mean() <= 0.01
    assert median[0.03] <= 100
    assert median[0.05] <= 60
    assert pooled["e-detector, tolerance 0"].false.mean() > 10 * ours.false.mean()  # why a bar needs a tolerance
    assert median[0.05] < at_quantiles(pooled["confidence sequence, tolerance 1%"].delays[0.05])[0]
    assert median[0.03] < at_quantiles(pooled["fixed 5% on batch means"].delays[0.03])[0]


@pytest.mark.parametrize("spike", [0.1, 0.2], ids=["spikes", "heavy spikes"])
def test_how_near_the_bound_it_is_where_noise_lasts_longest(spike: float):
    """phi .9: beside ours an oracle on the same batch means, its level given or estimated from the first window.

    It knows the noise and the size of the change, has no tolerance, and errs in exactly 1% of quiet stages.
    """
    head, first = BASELINE // BATCH, ONSET // BATCH
    quiet, other = batches(RUNS, STEPS, 0.9, spike, 3), batches(5 * RUNS, STEPS, 0.9, spike, 4)
    known = Noise.known(other)
    print(f"\n\nphi 0.9, spikes of {spike:.0%}; steps from onset to alarm: median and 90th percentile")
    for slower, asked in ((0.03, 100), (0.05, 60)):
        slowed = quiet.copy()
        slowed[:, head + first :] *= 1 + slower
        ours = score(DETECTORS["e-detector, tolerance 1%"], quiet)
        found = {"ours": ours.delays[slower]}
        for name, levels in (("given", (known, known)), ("estimated", None)):
            used = levels or (known.with_level_of(other[:, :head]), known.with_level_of(quiet[:, :head]))
            rows = (other[:, head:], slowed[:, head:])
            found[f"oracle, level {name}"] = BATCH * of_oracle(used, *rows, slower, first, BUDGET)
        shown = {name: at_quantiles(each) for name, each in found.items()}
        said = ", ".join(f"{name} {median:.0f} ({late:.0f})" for name, (median, late) in shown.items())
        print(f"{slower:.0%} (asked: {asked}): {said}; false alarms of ours {ours.false.mean():.2%}")
        given, estimated = shown["oracle, level given"][0], shown["oracle, level estimated"][0]
        assert given <= shown["ours"][0]
        if estimated > asked:
            print(
                f"OUT OF REACH: {slower:.0%} in {asked} steps. The oracle, which is told phi, sd and the size of the",
                end=" ",
            )
            print(f"change, needs {estimated:.0f} from a level estimated in {BASELINE} steps, as every detector's is")
        elif shown["ours"][0] > asked:
            print(
                f"MISS: {slower:.0%} takes {shown['ours'][0]:.0f} steps, one batch more than the oracle's limit",
                end=" ",
            )
            print(f"{estimated:.0f}; it knows phi, sd and size, and its threshold is fitted, not proven")
        else:
            print(f"REACHED: {slower:.0%} in {shown['ours'][0]:.0f} steps")
        if slower == 0.03:  # even for an oracle, what is asked needs a better level than 400 steps give
            assert estimated > asked
        else:
            assert shown["ours"][0] <= estimated + BATCH


def test_stops_once_two_fresh_batches_confirm():
    """The state that a live look carries, batch by batch: warnings, false stops, steps from onset to the stop."""
    runs, head, first = 60, BASELINE // BATCH, ONSET // BATCH
    print(f"\n\n{'phi':>4} {'warned':>7} {'alarm':>7} {'stopped':>8}   steps to stop at 5%: median, 90th percentile")
    stopped = 0
    for phi in PHIS:
        counts, delays = np.zeros(3), []
        for means in batches(runs, STEPS, phi, 0.1, 1):
            start = TwoTiers(EDetector.relative(fit_baseline(means[:head]), 0.01), alarm_threshold(BUDGET, 500))
            tiers, said = start, []
            for mean in means[head:]:
                tiers, tier = tiers.update(mean)
                said.append(tier)
            counts += ["warn" in said, "confirming" in said, "stop" in said]
            before, _ = start.detector.update(means[head : head + first])
            tiers, tier, at = TwoTiers(before, start.threshold), "quiet", 0
            while tier != "stop" and head + first + at < means.size:
                tiers, tier = tiers.update(1.05 * means[head + first + at])
                at += 1
            delays.append(BATCH * at if tier == "stop" else math.inf)
        shown = ", ".join(f"{v:.0f}" for v in at_quantiles(np.array(delays)))
        print(f"{phi:4g} " + " ".join(f"{share:7.1%}" for share in counts / runs) + f"    {shown}")
        stopped += int(counts[2])
        assert counts[2] <= counts[1] <= counts[0]
    assert stopped / (runs * len(PHIS)) <= 0.02


def test_the_budget_of_a_stage_of_a_million_steps():
    """One false alarm in a hundred stages is asked, however long the stage: ten thousand steps or a million."""
    print(f"\n\nfalse alarms in a million steps, budget {BUDGET:.0%} a stage (95% interval)")
    found = 0
    for phi in PHIS:
        alarms = int(e_detector(0.01)(batches(50, 1_000_000, phi, 0.1, 2)).any(axis=1).sum())
        interval = binomtest(alarms, 50).proportion_ci(0.95, method="exact")
        print(f"phi {phi:g}: {alarms} of 50 ({interval.low:.1%}..{interval.high:.1%})")
        found += alarms
    interval = binomtest(found, 200).proportion_ci(0.95, method="exact")
    print(f"all: {found} of 200 ({interval.low:.1%}..{interval.high:.1%})")
    assert interval.low <= BUDGET
