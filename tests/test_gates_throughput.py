"""Gates on speed: each on evidence that must pass, must fail, and must be asked for more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gate_evidence import facts, second_stage, steps, third_stage_entry

from tasks.gates import REGISTRY, Check, EarlierStage, Evidence, Outcome, judge


def ask(gate: str, evidence: Evidence, **thresholds: object) -> Check:
    return judge(REGISTRY[gate], evidence, thresholds)


def test_steady_throughput_reports_tokens_a_gpu_second_and_leaves_replay_and_canary_out():
    evidence = second_stage(speed=97.0)
    frame = evidence.steps
    frame.loc[frame["phase"] != "train", "step_seconds"] *= 7
    check = ask("steady_throughput", replace(evidence, steps=frame))
    assert check.outcome is Outcome.PASS
    assert check.estimate == pytest.approx(97.0, rel=0.01)
    assert check.n == 70
    assert check.window == "steps 111..180, phase train"
    assert check.interval is not None and check.limit is not None
    assert check.limit < check.interval[0] < check.estimate < check.interval[1]


def test_steady_throughput_drops_the_warm_up_of_a_stage_that_starts_cold():
    one = facts()
    frame = steps(one, 100.0)
    frame.loc[:14, "step_seconds"] *= 3
    check = ask("steady_throughput", Evidence(one, frame, frame))
    assert check.outcome is Outcome.PASS
    assert check.estimate == pytest.approx(100.0, rel=0.02)
    assert 70 <= check.n <= 80


def test_steady_throughput_wants_more_where_steps_scatter():
    check = ask("steady_throughput", replace(second_stage(), steps=steps(second_stage().stage, 97.0, sd=0.08)))
    assert check.outcome is Outcome.NEED_MORE_DATA
    assert "more steps" in check.next_step


def test_a_periodic_stall_hides_from_the_median_but_not_from_the_mean():
    evidence = second_stage()
    frame = evidence.steps
    frame.loc[frame["step"] % 10 == 0, "step_seconds"] *= 2
    slower = ask("steady_throughput", replace(evidence, steps=frame))
    assert slower.estimate == pytest.approx(97.0 / 1.1, rel=0.01)
    check = ask("stall_free", replace(evidence, steps=frame))
    assert check.outcome is Outcome.FAIL
    assert check.estimate == pytest.approx(1.1, rel=0.01)
    assert "7 of 70 more than half as long again" in check.reason
    assert ask("stall_free", second_stage()).outcome is Outcome.PASS


def test_tokens_per_gpu_second_goes_before_step_seconds():
    evidence = second_stage(speed=97.0)
    frame = evidence.steps
    frame["tokens_per_gpu_second"] = 4096 / frame["step_seconds"]
    frame["step_seconds"] = 1.0 + np.arange(len(frame))  # of something else
    check = ask("steady_throughput", replace(evidence, steps=frame))
    assert check.estimate == pytest.approx(97.0, rel=0.01)


@pytest.mark.parametrize(
    ("speed", "at_least", "outcome"),
    [
        (97.0, 0.90, Outcome.PASS),
        (85.0, 0.90, Outcome.FAIL),
        (90.0, 0.90, Outcome.NEED_MORE_DATA),
        (70.0, 0.65, Outcome.PASS),
    ],
)
def test_scaling_efficiency(speed: float, at_least: float, outcome: Outcome):
    check = ask("scaling_efficiency", second_stage(speed=speed), reference="gpus_8", at_least=at_least)
    assert check.outcome is outcome, check.reason
    assert check.estimate == pytest.approx(speed / 100, rel=0.01)
    assert check.limit == at_least
    assert check.against == "gpus_8 (weak scaling)"


def test_scaling_efficiency_says_strong_or_between_from_the_batches():
    evidence = second_stage()
    one = evidence.earlier["gpus_8"]
    for per_gpu, kind in ((512, "strong scaling"), (1024, "between weak and strong scaling (batch x2, GPUs x8)")):
        two = facts("gpus_64", 64, index=1, per_gpu=per_gpu)
        there = replace(evidence, stage=two, steps=steps(two, 95.0))
        check = ask("scaling_efficiency", there, reference="gpus_8")
        assert check.outcome is Outcome.PASS
        assert check.against == f"gpus_8 ({kind})"
        assert check.estimate == pytest.approx(0.95, rel=0.01)
    assert one.facts.throughput_batch_tokens == 8 * 4096


def test_a_reference_that_is_not_there_is_named_with_those_that_are():
    check = ask("scaling_efficiency", second_stage(), reference="gpus_16")
    assert check.outcome is Outcome.INVALID
    assert check.reason.endswith(
        "reference stage 'gpus_16' is no earlier stage of this run with records; there are: gpus_8"
    )


@pytest.mark.parametrize(
    ("slope", "outcome"), [(-0.005, Outcome.PASS), (-0.03, Outcome.NEED_MORE_DATA), (-0.05, Outcome.FAIL)]
)
def test_forecast_efficiency_from_8_and_64_for_1000(slope: float, outcome: Outcome):
    check = ask("forecast_efficiency", third_stage_entry(slope), reference="gpus_64", at_least=0.90)
    assert check.outcome is outcome, check.reason
    assert check.n == 2
    assert check.estimate == pytest.approx(np.exp(slope * np.log2(1000 / 64)), abs=0.02)
    assert "1000 GPUs are expected at" in check.reason


def test_forecast_efficiency_lets_the_canary_decide_on_a_tier_not_seen_before():
    seen = ask("forecast_efficiency", third_stage_entry(-0.005, tier=1), reference="gpus_64")
    beyond = ask("forecast_efficiency", third_stage_entry(-0.005, tier=2), reference="gpus_64")
    assert seen.outcome is beyond.outcome is Outcome.PASS
    assert "the canary decides" in beyond.reason
    assert "canary" not in seen.reason


def test_forecast_efficiency_refuses_to_fit_a_small_run_that_was_broken():
    check = ask("forecast_efficiency", third_stage_entry(+0.03), reference="gpus_64")
    assert check.outcome is Outcome.INVALID
    assert "1.094 times the work in gpus_64" in check.reason


def test_forecast_efficiency_fails_where_the_stage_before_fell_short_of_its_own_forecast():
    evidence = third_stage_entry(-0.005)
    late = replace(evidence.earlier["gpus_64"], forecast={"throughput": {"median": 110.0}})
    check = ask(
        "forecast_efficiency", replace(evidence, earlier={**evidence.earlier, "gpus_64": late}), reference="gpus_64"
    )
    assert check.outcome is Outcome.FAIL
    assert "gpus_64 itself reached only 89" in check.reason


def test_forecast_efficiency_scales_strongly_with_work_and_overhead():
    stages = {}
    for gpus in (8, 64):
        of = facts(f"gpus_{gpus}", gpus, index=0 if gpus == 8 else 1, throughput_batch_tokens=512_000)
        seconds = 8.0 * 8 / gpus + 0.02
        stages[of.name] = EarlierStage(of, steps(of, 512_000 / gpus / seconds, sd=1e-4), steps(of, 1.0))
    target = facts("gpus_1000", 1000, index=2, throughput_batch_tokens=512_000)
    evidence = Evidence(target, stages["gpus_64"].steps.iloc[:0], stages["gpus_64"].steps.iloc[:0], stages)
    check = ask("forecast_efficiency", evidence, reference="gpus_64", at_least=0.6)
    share = (1.0 + 0.02) / 64 / ((8.0 * 8 / 1000 + 0.02) / 1) * 64 / (1000 / 64)
    assert check.against == "gpus_64 (strong scaling)"
    assert check.estimate == pytest.approx(share, rel=0.03)
    only = replace(evidence, earlier={"gpus_64": stages["gpus_64"]})
    assert ask("forecast_efficiency", only, reference="gpus_64").outcome is Outcome.NEED_MORE_DATA


def canary_only(evidence: Evidence) -> Evidence:
    return replace(evidence, steps=evidence.steps[evidence.steps["phase"] != "train"], moment="early")


@pytest.mark.parametrize(
    ("speed", "outcome"), [(97.0, Outcome.PASS), (92.2, Outcome.NEED_MORE_DATA), (80.0, Outcome.FAIL)]
)
def test_canary_against_the_registered_forecast(speed: float, outcome: Outcome):
    check = ask("canary", canary_only(second_stage(speed=speed)))
    assert check.outcome is outcome, check.reason
    assert check.estimate == pytest.approx(speed / 97.3, rel=0.015)
    assert check.n == 20
    assert check.window == "steps 91..110, phase canary"


def test_a_spike_leaves_the_canary_undecided_until_more_steps_are_in():
    evidence = second_stage(speed=97.0)
    evidence.steps.loc[evidence.steps["step"] == 100, "step_seconds"] *= 2
    assert ask("canary", canary_only(evidence)).outcome is Outcome.NEED_MORE_DATA
    later = ask("canary", evidence)
    assert later.outcome is Outcome.PASS
    assert later.window == "steps 91..180, phase canary and train"


def test_canary_without_a_forecast_is_invalid():
    for forecast in (None, {}, {"throughput": None}, {"throughput": {"median": None}}):
        check = ask("canary", second_stage(forecast=forecast))
        assert check.outcome is Outcome.INVALID
        assert "no throughput was forecast for gpus_64" in check.reason
