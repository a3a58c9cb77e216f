"""Gates on stability, memory, goodput and bounds: on evidence that must pass, that must fail, that is too short."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gate_evidence import second_stage

from tasks.gates import REGISTRY, Check, Evidence, Outcome, judge


def ask(gate: str, evidence: Evidence, **thresholds: object) -> Check:
    return judge(REGISTRY[gate], evidence, thresholds)


def changed(evidence: Evidence, **columns: Any) -> Evidence:
    """The same evidence with columns as functions of the step make them."""
    step = evidence.steps["step"].to_numpy(dtype=float)
    return replace(evidence, steps=evidence.steps.assign(**{name: f(step) for name, f in columns.items()}))


def with_spikes(count: int) -> Evidence:
    evidence = second_stage()
    at = [120, 140, 160, 175][:count]
    evidence.steps.loc[evidence.steps["step"].isin(at), "loss"] += 1.5
    return evidence


@pytest.mark.parametrize(("count", "outcome"), [(0, Outcome.PASS), (1, Outcome.PASS), (2, Outcome.FAIL)])
def test_spikes_of_the_loss(count: int, outcome: Outcome):
    check = ask("stable_loss", with_spikes(count))
    assert check.outcome is outcome, check.reason
    assert (check.estimate, check.limit, check.unit) == (count, 1, "spikes")
    if count:
        assert "first at step 120" in check.reason


def test_of_a_long_stage_one_spike_in_a_thousand_steps_is_let_pass():
    n = 3000
    rng = np.random.default_rng(0)
    evidence = second_stage()
    stage = replace(evidence.stage, first_step=1, last_step=n)
    loss = 3.0 + 0.05 * rng.normal(size=n)
    frame = pd.DataFrame({"step": np.arange(1, n + 1), "loss": loss, "grad_norm": 1 + 0.1 * rng.random(n)})
    for count, outcome in ((3, Outcome.PASS), (4, Outcome.FAIL)):
        spiked = frame.assign(loss=loss + 2.0 * np.isin(frame["step"], [500, 1200, 1900, 2600][:count]))
        assert ask("stable_loss", replace(evidence, stage=stage, steps=spiked)).outcome is outcome


def test_false_alarms_of_the_stability_gate_are_rare():
    """200 healthy stages of 90 steps: at most 2% fail, by spikes and by a climbing gradient norm together."""
    failed, healthy = 0, second_stage()
    for seed in range(200):
        rng = np.random.default_rng(seed)
        evidence = changed(
            healthy,
            loss=lambda step, rng=rng: 5.5 - 0.5 * np.log(step) + 0.05 * rng.normal(size=step.size),
            grad_norm=lambda step, rng=rng: 0.6 * np.exp(0.3 * rng.normal(size=step.size)),
        )
        failed += ask("stable_loss", evidence).outcome is not Outcome.PASS
    assert failed <= 4


def test_a_gradient_norm_that_climbs_fails_before_the_loss_does():
    climbing = changed(second_stage(), grad_norm=lambda step: 0.5 * np.exp(np.maximum(step - 135, 0) * 0.03))
    check = ask("stable_loss", climbing)
    assert check.outcome is Outcome.FAIL
    assert check.unit == "times the gradient norm at mid-stage"
    assert check.estimate > 2
    assert "before the loss follows" in check.next_step
    slowly = changed(second_stage(), grad_norm=lambda step: 0.5 * np.exp(np.maximum(step - 135, 0) * 0.01))
    falling = changed(second_stage(), grad_norm=lambda step: 50 * np.exp(-step * 0.03))
    assert ask("stable_loss", slowly).outcome is ask("stable_loss", falling).outcome is Outcome.PASS


def test_skipped_updates_and_the_loss_scale_are_judged_where_they_are_recorded():
    evidence = second_stage()
    absent = evidence.steps.assign(skipped_steps=np.nan, loss_scale=np.nan)
    assert ask("stable_loss", replace(evidence, steps=absent)).outcome is Outcome.PASS
    fine = changed(evidence, skipped_steps=lambda s: 1.0 * (s == 120), loss_scale=lambda s: 65536.0 + 0 * s)
    assert ask("stable_loss", fine).outcome is Outcome.PASS
    skipping = ask("stable_loss", changed(evidence, skipped_steps=lambda s: 1.0 * (s % 10 == 0)))
    assert (skipping.outcome, skipping.estimate, skipping.unit) == (Outcome.FAIL, 9, "skipped updates")
    collapsed = ask("stable_loss", changed(evidence, loss_scale=lambda s: 2.0 ** (150 - s)))
    assert (collapsed.outcome, collapsed.unit) == (Outcome.FAIL, "loss scale")
    half = changed(evidence, loss_scale=lambda s: np.where(s > 150, np.nan, 1.0))
    assert ask("stable_loss", half).outcome is Outcome.INVALID


def test_a_skipped_update_has_no_gradient_norm_and_needs_none():
    skipped = changed(second_stage(), skipped_steps=lambda s: 1.0 * (s == 120))
    without = changed(skipped, grad_norm=lambda s: np.where(s == 120, np.nan, 0.6 + 0.01 * np.sin(s)))
    assert ask("stable_loss", without).outcome is Outcome.PASS
    assert ask("within", without, metric="grad_norm", high=1.0).outcome is Outcome.PASS
    other = changed(skipped, grad_norm=lambda s: np.where(s == 121, np.nan, 0.6 + 0.01 * np.sin(s)))
    assert ask("stable_loss", other).outcome is ask("within", other, metric="grad_norm", high=1.0).outcome
    assert "grad_norm is not a finite number in 1 of" in ask("stable_loss", other).reason


def test_a_stage_cut_short_is_not_stable():
    evidence = second_stage()
    assert ask("stable_loss", replace(evidence, steps=evidence.steps.iloc[:80])).outcome is Outcome.INVALID
    gap = evidence.steps[evidence.steps["step"] != 150]
    assert "1 steps between" in ask("stable_loss", replace(evidence, steps=gap)).reason


@pytest.mark.parametrize(
    ("peak", "outcome"), [(70.0, Outcome.PASS), (77.0, Outcome.FAIL), (0.04, Outcome.INVALID), (-1.0, Outcome.INVALID)]
)
def test_memory_headroom_is_of_the_peak(peak: float, outcome: Outcome):
    evidence = changed(second_stage(), memory_gib=lambda s: np.where(s == 130, peak, min(peak, 40.0)))
    check = ask("memory_headroom", evidence)
    assert check.outcome is outcome, check.reason
    if outcome is not Outcome.INVALID:
        assert check.estimate == pytest.approx(peak / 80)
        assert "at step 130" in check.reason and check.reason.startswith("modelled, not measured: ")


def test_memory_of_a_gpu_nobody_knows_is_not_judged():
    evidence = second_stage()
    unknown = replace(evidence, stage=replace(evidence.stage, memory_gib_per_gpu=None, emulated=False))
    check = ask("memory_headroom", unknown)
    assert check.outcome is Outcome.INVALID and "write memory_gib_per_gpu" in check.reason


def real(seconds: float = 1.0, between: float = 1.01, **changes: Any) -> Evidence:
    """A real stage whose steps take ``seconds`` and end ``between`` seconds apart."""
    evidence = changed(second_stage(), step_seconds=lambda s: seconds + 1e-3 * (s % 7), time=lambda s: between * s)
    return replace(evidence, stage=replace(evidence.stage, emulated=False), **changes)


@pytest.mark.parametrize(("between", "outcome"), [(1.01, Outcome.PASS), (1.2, Outcome.FAIL), (0.5, Outcome.INVALID)])
def test_goodput_is_productive_over_wall_time(between: float, outcome: Outcome):
    check = ask("goodput", real(between=between))
    assert check.outcome is outcome, check.reason
    if outcome is not Outcome.INVALID:
        assert check.estimate == pytest.approx(1.003 / between, rel=2e-3)  # one gap holds an evaluation


def test_planned_evaluations_and_checkpoints_are_set_aside_and_a_restart_is_not():
    evidence = real()
    late = evidence.steps["step"] > 150
    steps = evidence.steps.assign(time=evidence.steps["time"] + 60.0 * late)
    assert ask("goodput", replace(evidence, steps=steps)).outcome is Outcome.FAIL
    rows = pd.DataFrame({"step": [150], "loss": [3.0], "at": ["step"], "tokens": [150 * 8192]})
    evaluated = replace(evidence, steps=steps, held_out=rows)
    assert ask("goodput", evaluated).outcome is Outcome.PASS
    written = pd.DataFrame({"step": [150], "path": ["c"], "seconds": [60.0]})
    assert ask("goodput", replace(evidence, steps=steps, checkpoints=written)).outcome is Outcome.PASS
    restarted = steps.assign(attempt=np.where(late, 2, 1))
    assert ask("goodput", replace(evaluated, steps=restarted)).outcome is Outcome.FAIL
    longer = replace(evidence, steps=steps, checkpoints=written.assign(seconds=1e6))
    assert ask("goodput", longer).estimate <= 1.0  # no more than the gap is set aside


def test_goodput_of_a_rehearsal_is_reported_and_not_gated():
    slow = real(between=3.0)
    check = ask("goodput", replace(slow, stage=replace(slow.stage, emulated=True)))
    assert check.outcome is Outcome.PASS
    assert check.reason.endswith("a rehearsal, so reported and not gated")
    assert check.estimate == pytest.approx(0.334, rel=0.01)
    back = real(between=-1.0)
    assert ask("goodput", replace(back, stage=replace(back.stage, emulated=True))).outcome is Outcome.INVALID


@pytest.mark.parametrize(
    ("end", "speed", "outcome", "unit"),
    [
        (2.9, 97.0, Outcome.PASS, "tokens/s/GPU"),
        (2.75, 97.0, Outcome.NEED_MORE_DATA, "nats"),
        (2.9, 115.0, Outcome.NEED_MORE_DATA, "tokens/s/GPU"),
    ],
)
def test_what_is_too_good_is_for_a_person(end: float, speed: float, outcome: Outcome, unit: str):
    evidence = second_stage(speed=speed)
    rows = evidence.held_out.assign(loss=np.where(evidence.held_out["at"] == "end", end, evidence.held_out["loss"]))
    check = ask("too_good", replace(evidence, held_out=rows))
    assert (check.outcome, check.unit) == (outcome, unit), check.reason
    assert (check.measurement is not None and check.measurement.kind == "person") == (outcome is not Outcome.PASS)


def test_nothing_can_be_too_good_without_a_forecast_and_one_part_alone_is_judged():
    assert ask("too_good", second_stage(forecast=None)).outcome is Outcome.INVALID
    speed = {"throughput": {"median": 97.3, "high": 101.0}}
    assert ask("too_good", second_stage(forecast=speed)).outcome is Outcome.PASS
    assert ask("too_good", second_stage(forecast=speed, speed=115.0)).outcome is Outcome.NEED_MORE_DATA


@pytest.mark.parametrize(
    ("asked", "outcome"),
    [
        ({"low": 0.0, "high": 10.0}, Outcome.PASS),
        ({"high": 10.0}, Outcome.PASS),
        ({"low": 0.0}, Outcome.PASS),
        ({"high": 3.0}, Outcome.FAIL),
        ({"high": 3.1, "over": "mean"}, Outcome.PASS),
        ({"high": 3.0, "over": "mean"}, Outcome.NEED_MORE_DATA),
        ({"high": 2.9, "over": "mean"}, Outcome.FAIL),
        ({"low": 0.0, "phase": "canary"}, Outcome.PASS),
        ({}, Outcome.INVALID),
    ],
)
def test_within(asked: dict[str, Any], outcome: Outcome):
    evidence = changed(second_stage(), aux_loss=lambda s: 3.0 + 0.3 * np.sin(s * 2.4))
    check = ask("within", evidence, metric="aux_loss", **asked)
    assert check.outcome is outcome, check.reason
    if outcome is not Outcome.INVALID:
        assert check.unit == "aux_loss"


def test_within_names_a_metric_that_is_not_there():
    check = ask("within", second_stage(), metric="router_entropy", low=0.0)
    assert check.outcome is Outcome.INVALID and "have no column 'router_entropy'" in check.reason


def test_seconds_that_the_steps_own_time_stamps_contradict_are_another_unit():
    for factor in (1000.0, 0.001):
        evidence = changed(real(), step_seconds=lambda s, f=factor: f * (1.0 + 1e-3 * (s % 7)))
        for gate in ("steady_throughput", "stall_free", "goodput"):
            check = ask(gate, evidence)
            assert check.outcome is not Outcome.PASS, (gate, check.reason)
        assert "another unit" in ask("steady_throughput", evidence).reason
