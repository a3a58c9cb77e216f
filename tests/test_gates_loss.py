"""Gates on loss, recovery and stability: each on evidence that must pass, must fail, and must be asked for more."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from gate_evidence import facts, held_out, second_stage

from tasks.gates import REGISTRY, Check, EarlierStage, Evidence, Outcome, judge


def ask(gate: str, evidence: Evidence, **thresholds: object) -> Check:
    return judge(REGISTRY[gate], evidence, thresholds)


def with_loss(evidence: Evidence, phase: str, loss: object) -> Evidence:
    frame = evidence.steps.copy()
    frame.loc[frame["phase"] == phase, "loss"] = loss
    return replace(evidence, steps=frame)


def test_finite_loss():
    check = ask("finite_loss", second_stage())
    assert check.outcome is Outcome.PASS
    assert (check.n, check.estimate, check.limit) == (110, 0, 0)
    assert check.reason == "all 110 losses of steps 71 to 180 are finite"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_loss_that_is_no_number_fails_the_stage(bad: float):
    evidence = second_stage()
    evidence.steps.loc[evidence.steps["step"] == 133, "loss"] = bad
    check = ask("finite_loss", evidence)
    assert check.outcome is Outcome.FAIL
    assert check.reason == "the loss is not a finite number in 1 of 110 records, first at step 133"


def test_a_lost_step_or_a_missing_end_is_invalid_at_the_end_and_the_end_is_not_asked_early():
    evidence = second_stage()
    gap = replace(evidence, steps=evidence.steps[evidence.steps["step"] != 133])
    assert ask("finite_loss", gap).reason.endswith("1 steps between 71 and 180 of gpus_64 have no record")
    short = replace(evidence, steps=evidence.steps.iloc[:40])
    assert ask("finite_loss", short).outcome is Outcome.INVALID
    assert ask("finite_loss", replace(short, moment="early")).outcome is Outcome.PASS
    late = replace(evidence, steps=evidence.steps.iloc[50:])
    assert "begin at step 121, not at 91" in ask("finite_loss", late).reason


@pytest.mark.parametrize(
    ("start", "outcome"),
    [
        (3.2, Outcome.PASS),
        (3.2005, Outcome.PASS),
        (3.203, Outcome.NEED_MORE_DATA),
        (3.3, Outcome.FAIL),
        (3.1, Outcome.FAIL),
    ],
)
def test_resume_parity(start: float, outcome: Outcome):
    evidence = second_stage()
    one = evidence.earlier["gpus_8"]
    earlier = {"gpus_8": replace(one, held_out=held_out(one.facts, 5.5, 3.1, hand_over=3.2))}
    there = replace(evidence, earlier=earlier, held_out=held_out(evidence.stage, start, 2.9))
    check = ask("resume_parity", there)
    assert check.outcome is outcome
    assert check.estimate == pytest.approx(start - 3.2)
    assert check.against == "gpus_8 at step 70"


def test_resume_parity_without_the_stage_before_at_that_step_is_invalid():
    evidence = second_stage()
    one = evidence.earlier["gpus_8"]
    earlier = {"gpus_8": replace(one, held_out=held_out(one.facts, 5.5, 3.1))}
    check = ask("resume_parity", replace(evidence, earlier=earlier))
    assert check.reason == "cannot be judged: gpus_8 has no held-out loss at step 70"
    assert ask("resume_parity", second_stage(previous=None)).outcome is Outcome.INVALID


def test_replay_parity_of_the_same_samples():
    check = ask("replay_parity", second_stage())
    assert check.outcome is Outcome.PASS
    assert check.estimate == 0
    assert check.n == 20
    assert check.window == "steps 71..90, phase replay"
    evidence = second_stage()
    replay = evidence.steps.loc[evidence.steps["phase"] == "replay", "loss"]
    numerics = replay + 1e-4 * np.random.default_rng(0).normal(size=20)
    assert ask("replay_parity", with_loss(evidence, "replay", numerics)).outcome is Outcome.PASS


def test_replay_parity_sees_a_lost_optimizer_state_and_other_samples():
    evidence = second_stage()
    replay = evidence.steps.loc[evidence.steps["phase"] == "replay", "loss"].to_numpy()
    bump = ask("replay_parity", with_loss(evidence, "replay", replay + 0.03))
    assert bump.outcome is Outcome.FAIL
    assert "optimizer state" in bump.next_step
    other = ask("replay_parity", with_loss(evidence, "replay", replay[::-1].copy()))
    assert other.outcome is Outcome.FAIL
    assert "these were not the same samples" in other.reason
    wobble = replay + 0.012 * np.repeat([1, -1, 1, -1], 5)
    assert ask("replay_parity", with_loss(evidence, "replay", wobble)).outcome is Outcome.NEED_MORE_DATA


def test_replay_parity_pairs_every_replayed_step():
    evidence = second_stage()
    one = evidence.earlier["gpus_8"]
    cut = {"gpus_8": replace(one, steps=one.steps[one.steps["step"] != 80])}
    assert "19 of 20 replayed steps pair" in ask("replay_parity", replace(evidence, earlier=cut)).reason
    none = replace(evidence, steps=evidence.steps[evidence.steps["phase"] != "replay"])
    assert ask("replay_parity", none).outcome is Outcome.INVALID


@pytest.mark.parametrize(
    ("end", "outcome"), [(2.9, Outcome.PASS), (3.005, Outcome.PASS), (3.02, Outcome.FAIL), (3.2, Outcome.FAIL)]
)
def test_loss_against_the_forecast(end: float, outcome: Outcome):
    evidence = second_stage()
    check = ask("loss_near_baseline", replace(evidence, held_out=held_out(evidence.stage, 3.2, end)))
    assert check.outcome is outcome, check.reason
    assert (check.estimate, check.limit) == (end, pytest.approx(3.01))
    assert "there is no stored reference curve" in check.against


def test_a_band_that_reaches_above_the_start_still_wants_the_loss_to_fall():
    wide = second_stage(forecast={"held_out_loss": {"low": 2.0, "median": 2.9, "high": 3.9}})
    check = ask("loss_near_baseline", wide)
    assert check.outcome is Outcome.PASS
    assert "this shows only that the loss fell" in check.reason
    stuck = ask("loss_near_baseline", replace(wide, held_out=held_out(wide.stage, 3.2, 3.2)))
    assert stuck.outcome is Outcome.FAIL


def baseline(*offsets: float, batch_tokens: int = 8192, fingerprint: str = "f" * 64) -> dict[str, object]:
    tokens = np.array([1e5, 5e5, 1e6, 2e6])
    runs = [{"tokens": tokens.tolist(), "held_out_loss": (9.0 - 0.45 * np.log(tokens) + o).tolist()} for o in offsets]
    return {"fingerprint": fingerprint, "batch_tokens": batch_tokens, "runs": runs}


@pytest.mark.parametrize(
    ("excess", "outcome"),
    [(0.0, Outcome.PASS), (-0.05, Outcome.PASS), (0.01, Outcome.NEED_MORE_DATA), (0.05, Outcome.FAIL)],
)
def test_loss_against_stored_reference_runs(excess: float, outcome: Outcome):
    evidence = second_stage(baseline=baseline(-0.001, 0.0, 0.001))
    expected = 9.0 - 0.45 * math.log(180 * 8192)
    check = ask("loss_near_baseline", replace(evidence, held_out=held_out(evidence.stage, 3.2, expected + excess)))
    assert check.outcome is outcome, check.reason
    assert check.estimate == pytest.approx(excess, abs=1e-3)
    assert check.against == "stored reference curve, 3 runs on the same data"


def test_a_reference_of_another_batch_is_shifted_and_pays_for_it():
    same = ask("loss_near_baseline", second_stage(baseline=baseline(-0.001, 0.0, 0.001)))
    other = ask("loss_near_baseline", second_stage(baseline=baseline(-0.001, 0.0, 0.001, batch_tokens=4096)))
    assert other.estimate < same.estimate
    assert other.interval[1] - other.interval[0] > same.interval[1] - same.interval[0]


def test_a_reference_that_cannot_be_used_says_why():
    assert ask("loss_near_baseline", second_stage(baseline=baseline(0.0))).outcome is Outcome.NEED_MORE_DATA
    assert "scaleup calibrate" in ask("loss_near_baseline", second_stage(baseline=baseline(0.0))).reason
    wrong = ask("loss_near_baseline", second_stage(baseline=baseline(0.0, 0.1, fingerprint="e" * 64)))
    assert wrong.outcome is Outcome.INVALID
    assert "reference curve is of data 'eeeeeeeeeeee', this stage trained on 'ffffffffffff'" in wrong.reason
    evidence = second_stage(baseline=baseline(0.0, 0.1))
    soon = evidence.held_out.assign(tokens=10**4)
    assert "spans 100,000 to 2,000,000 tokens" in ask("loss_near_baseline", replace(evidence, held_out=soon)).reason


def test_the_first_stage_has_no_loss_to_be_compared_with():
    one = facts()
    forecast = {"held_out_loss": {"median": None, "low": None, "high": None, "says": "no stage came before"}}
    evidence = Evidence(one, pd.DataFrame(), held_out(one, 5.5, 3.1), forecast=forecast)
    check = ask("loss_near_baseline", evidence)
    assert check.outcome is Outcome.INVALID
    assert "no stage came before" in check.reason


def test_the_held_out_loss_must_be_of_the_last_step():
    evidence = second_stage()
    rows = evidence.held_out.assign(step=[70, 130, 150])
    assert "of step 150, not of its last, 180" in ask("loss_near_baseline", replace(evidence, held_out=rows)).reason


def test_earlier_stage_is_found_by_name_alone():
    evidence = second_stage(previous="gpus_7")
    assert isinstance(evidence.earlier["gpus_8"], EarlierStage)
    assert "there are: gpus_8" in ask("replay_parity", evidence).reason
