"""Several launches of one size, probes as points, where noise is from, and what an undecided gate would buy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gate_evidence import facts, second_stage, steps, third_stage_entry

from tasks import statistics
from tasks.gates import REGISTRY, Check, Evidence, Noise, Outcome, Probe, judge
from tasks.gates.core import Measurement


def ask(gate: str, evidence: Evidence, **thresholds: object) -> Check:
    return judge(REGISTRY[gate], evidence, thresholds)


def probe(gpus: int, speed: float, *, seed: int = 5, sd: float = 0.01, **other: object) -> Probe:
    """A probe of 60 steps on some GPUs with the work a GPU of all stages here."""
    of = facts(f"gpus_64/gpus_{gpus}.1", gpus, first_step=1, last_step=60, **other)
    return Probe(of, steps(of, speed, seed=seed, sd=sd, canary=False).assign(phase="probe"))


def mean(value: float, se: float = 0.001, df: float = 9.0) -> statistics.Mean:
    return statistics.Mean(value, value * se, df, value, value, 60, 10)


def test_launch_variance_is_shared_among_launches():
    one = statistics.across_launches([mean(100.0)], launch_sd=0.005)
    four = statistics.across_launches([mean(v) for v in (100.0, 100.4, 99.7, 99.9)], launch_sd=0.005)
    assert four.se == pytest.approx(one.se / 2, rel=0.02)
    assert four.value == pytest.approx(100.0, rel=1e-3)
    assert four.n == 240


def test_a_measured_launch_sd_pays_for_its_few_repeats():
    prior = statistics.across_launches([mean(100.0)], launch_sd=0.005)
    measured = statistics.across_launches([mean(100.0)], launch_sd=0.005, launch_df=3)
    assert measured.half_width > 1.5 * prior.half_width


def test_launches_that_refute_the_launch_sd_widen_the_interval():
    near = statistics.across_launches([mean(100.0), mean(100.5)], launch_sd=0.005)
    far = statistics.across_launches([mean(100.0), mean(110.0)], launch_sd=0.005)
    assert near.half_width < 0.01
    assert far.low < 100.0 and far.high > 110.0


def test_the_interval_of_several_launches_covers_as_often_as_it_says():
    """1,000 sets of three launches that differ by the prior: 95% intervals hold the truth in about 95% of them."""
    rng = np.random.default_rng(0)
    shifts, inside = rng.normal(0, 0.005, (1000, 3)) + rng.normal(0, 0.001, (1000, 3)), 0
    for row in shifts:
        found = statistics.across_launches([mean(100.0 * np.exp(s)) for s in row], launch_sd=0.005)
        inside += found.low <= 100.0 <= found.high
    assert 930 <= inside <= 970


def test_no_launch_or_one_that_is_not_positive_is_refused():
    for wrong in ([], [mean(0.0)], [mean(float("nan"))]):
        with pytest.raises(ValueError, match="launches, of which all must be finite and positive"):
            statistics.across_launches(wrong, launch_sd=0.005)


def test_a_probe_of_the_same_size_is_another_launch_of_the_stage():
    alone = ask("steady_throughput", second_stage(speed=97.0))
    both = ask("steady_throughput", second_stage(speed=97.0, probes=(probe(64, 98.0),)))
    assert both.interval[1] - both.interval[0] < 0.8 * (alone.interval[1] - alone.interval[0])
    assert 97.2 < both.estimate < 97.8
    assert "of 2 launches" in both.reason and "gpus_64/gpus_64.1 steps" in both.window
    other = ask("steady_throughput", second_stage(speed=97.0, probes=(probe(16, 98.0), probe(64, 98.0, per_gpu=512))))
    assert other.estimate == alone.estimate  # another size, and other work a GPU


def test_a_probe_of_the_reference_size_narrows_the_efficiency():
    alone = ask("scaling_efficiency", second_stage(speed=90.0), reference="gpus_8", at_least=0.89)
    both = ask("scaling_efficiency", second_stage(speed=90.0, probes=(probe(8, 100.2),)), reference="gpus_8")
    assert both.interval[1] - both.interval[0] < alone.interval[1] - alone.interval[0]
    assert "1 against 2 launches" in both.method


def test_probes_are_points_of_the_forecast_wherever_they_lie():
    entry = third_stage_entry(-0.03)
    few = ask("forecast_efficiency", entry, reference="gpus_64")
    late = entry.earlier["gpus_64"]
    inside = tuple(probe(gpus, 100.0 * np.exp(-0.03 * np.log2(gpus / 8)), sd=1e-4) for gpus in (16, 32))
    more = replace(entry, earlier={**entry.earlier, "gpus_64": replace(late, probes=inside)})
    own = replace(entry, probes=inside)
    assert few.n == 2
    for seen in (more, own):
        check = ask("forecast_efficiency", seen, reference="gpus_64")
        assert check.n == 4
        assert "gpus_64/gpus_16.1 steps" in check.window
        assert check.interval[1] - check.interval[0] < few.interval[1] - few.interval[0]


def test_a_broken_probe_is_refused_not_left_out():
    broken = probe(16, 99.0)
    broken.steps.loc[30, "step_seconds"] = np.nan
    check = ask("forecast_efficiency", replace(third_stage_entry(-0.005), probes=(broken,)), reference="gpus_64")
    assert check.outcome is Outcome.INVALID
    assert "of gpus_64/gpus_16.1" in check.reason


NOISE = Noise(launch_sd=0.002, repeats=8, source="noise_x_h100_64gpus.json")


def test_a_check_says_whether_its_noise_was_measured():
    for gate, more in (("steady_throughput", {}), ("scaling_efficiency", {"reference": "gpus_8"}), ("canary", {})):
        prior = ask(gate, second_stage(), **more)
        measured = ask(gate, second_stage(noise=NOISE), **more)
        assert prior.inputs == {"launch_sd": "prior, 0.005"}
        assert measured.inputs == {"launch_sd": "measured, 8 repeats (noise_x_h100_64gpus.json), 0.002"}
        assert measured.interval[1] - measured.interval[0] < prior.interval[1] - prior.interval[0]
        assert ask(gate, second_stage(noise=NOISE), launch_sd=0.01, **more).inputs == {
            "launch_sd": "given in the policy, 0.01"
        }
    few = ask("steady_throughput", second_stage(noise=replace(NOISE, repeats=2)))
    assert few.inputs == {"launch_sd": "prior, 0.005"}


def bought(check: Check) -> Measurement:
    assert check.outcome is Outcome.NEED_MORE_DATA, check.reason
    assert check.measurement is not None
    return check.measurement


FOLLOWING = facts("gpus_1000", 1000, index=2, steps_at_stake=120)


def test_an_undecided_efficiency_buys_the_cheaper_of_the_two_launches():
    evidence = second_stage(speed=89.5, following=FOLLOWING)
    buy = bought(ask("scaling_efficiency", evidence, reference="gpus_8"))
    assert (buy.kind, buy.gpus, buy.steps) == ("probe", 8, 60)
    assert buy.gpu_hours == pytest.approx(60 * 4096 / 100 * 8 / 3600, rel=0.01)
    assert buy.wrong_gpu_hours == pytest.approx(120 * 4096 / 89.5 * 1000 / 3600, rel=0.01)
    assert buy.says == "another launch at the size of gpus_8: 60 steps on 8 GPUs"


def test_under_strong_scaling_only_the_stages_own_size_can_be_measured_again():
    two = facts("gpus_64", 64, index=1, per_gpu=512)
    evidence = replace(second_stage(), stage=two, steps=steps(two, 90.0))
    assert bought(ask("scaling_efficiency", evidence, reference="gpus_8")).gpus == 64


def test_an_unsteady_throughput_buys_another_launch():
    evidence = second_stage(following=FOLLOWING)
    buy = bought(ask("steady_throughput", evidence, half_width=0.008))
    assert (buy.kind, buy.gpus, buy.steps) == ("probe", 64, 60)
    last = bought(ask("steady_throughput", second_stage(), half_width=0.008))
    assert last.wrong_gpu_hours is None  # no stage follows


def test_an_undecided_forecast_buys_the_cheapest_probe_that_is_likely_to_decide():
    entry = third_stage_entry(-0.03)
    buy = bought(ask("forecast_efficiency", entry, reference="gpus_64"))
    assert buy.kind == "probe" and buy.gpus in (8, 64, 128, 256, 512)
    assert buy.gpu_hours < buy.wrong_gpu_hours
    assert buy.gpu_hours == pytest.approx(60 * 4096 / 92 * buy.gpus / 3600, rel=0.1)
    slope = np.exp(-0.03 * np.log2(buy.gpus / 8))
    after = replace(entry, probes=(probe(buy.gpus, 100 * slope, sd=1e-4, tier=2),))
    assert ask("forecast_efficiency", after, reference="gpus_64").n == 3


def test_no_probe_that_costs_more_than_the_error_is_named():
    check = ask("forecast_efficiency", third_stage_entry(-0.03, steps_at_stake=1), reference="gpus_64")
    assert bought(check).kind in ("person", "probe")
    buy = bought(check)
    assert buy.kind == "person" or buy.gpu_hours < buy.wrong_gpu_hours
    none = ask("forecast_efficiency", third_stage_entry(-0.03, steps_at_stake=1e-3), reference="gpus_64")
    assert bought(none).kind == "person"


def test_a_tier_not_seen_is_cleared_by_the_canary_or_by_a_probe_beyond_it():
    entry = third_stage_entry(-0.005, tier=2)
    assert ask("forecast_efficiency", entry, reference="gpus_64").outcome is Outcome.PASS
    held = ask("forecast_efficiency", third_stage_entry(-0.005, tier=2, asks_canary=False), reference="gpus_64")
    buy = bought(held)
    assert "no canary is asked that would decide" in held.reason
    assert (buy.kind, buy.gpus) == ("probe", 128)  # the smallest of which tier 1 ends before
    after = third_stage_entry(-0.005, tier=2, asks_canary=False)
    after = replace(after, probes=(probe(128, 98.0, tier=2),))
    assert ask("forecast_efficiency", after, reference="gpus_64").outcome is Outcome.PASS


def test_a_tier_that_only_the_target_reaches_leaves_its_canary():
    entry = third_stage_entry(-0.005, tier=2, tier_ends=(8, 512, 1024), asks_canary=False)
    buy = bought(ask("forecast_efficiency", entry, reference="gpus_64"))
    assert (buy.kind, buy.gpus) == ("canary", 1000)
    assert "write `canary:` among the gates of gpus_1000" in buy.says


def test_strong_scaling_of_one_stage_alone_buys_a_point_with_the_targets_work():
    entry = third_stage_entry(-0.005, throughput_batch_tokens=64 * 4096)
    only = replace(entry, earlier={"gpus_64": entry.earlier["gpus_64"]})
    buy = bought(ask("forecast_efficiency", only, reference="gpus_64"))
    assert (buy.kind, buy.gpus) == ("probe", 64)


def test_an_undecided_canary_waits_for_the_steps_that_come_anyway():
    evidence = second_stage(speed=92.2)
    canary = replace(evidence, steps=evidence.steps[evidence.steps["phase"] != "train"], moment="early")
    buy = bought(ask("canary", canary))
    assert (buy.kind, buy.gpus, buy.steps) == ("more_steps", 64, 60)
    done = ask("canary", replace(evidence, moment="early"), at_least=0.948, lower_at_least=0.947)
    assert bought(done).kind == "person"


def test_a_canary_many_times_faster_than_forecast_is_no_pass():
    evidence = second_stage(speed=97_000.0)
    assert ask("canary", evidence).outcome is Outcome.INVALID
    assert "another unit or other work" in ask("canary", evidence).reason
    ratio = ask("scaling_efficiency", evidence, reference="gpus_8")
    assert ratio.outcome is Outcome.INVALID and "967 times the work" in ratio.reason


def ar1(rng: np.random.Generator, n: int, phi: float) -> np.ndarray:
    """AR(1) noise of sd 1, by convolution with its own impulse response."""
    response = phi ** np.arange(60)
    return np.convolve(np.sqrt(1 - phi**2) * rng.normal(size=n + 59), response, "valid")


def rates(true: float, launches: int, count: int = 400) -> dict[str, float]:
    """Shares of the three decisions on a bar of .95: 60 steps, phi .5, launch sd .5%, step sd 1%."""
    rng, found = np.random.default_rng(1), []
    for _ in range(count):
        seen = [
            statistics.inverse(
                statistics.batch_means((1 + 0.01 * ar1(rng, 60, 0.5)) / true / (1 + 0.005 * rng.normal())), 1.0
            )
            for _ in range(launches)
        ]
        together = statistics.across_launches(seen, launch_sd=0.005)
        found.append(statistics.decide(together.low, together.high, 0.95))
    return {decision: found.count(decision) / count for decision in ("pass", "fail", "more")}


@pytest.mark.parametrize(("launches", "power"), [(1, 0.42), (2, 0.71), (3, 0.83)])
def test_operating_characteristic_of_several_launches(launches: int, power: float):
    """GATES 7.1's table: on the bar wrong in at most 5% either way (and noise of 400), beside it at least its power."""
    on_the_bar = rates(0.95, launches)
    assert on_the_bar["pass"] <= 0.05 and on_the_bar["fail"] <= 0.06
    good, bad = rates(0.96, launches), rates(0.94, launches)
    assert good["fail"] == bad["pass"] == 0
    assert good["pass"] >= power - 0.05 and bad["fail"] >= power - 0.05
