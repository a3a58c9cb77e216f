"""The loss gate against stored runs: paired and unpaired error rates by simulation, and what cannot be compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gate_evidence import facts, held_out, second_stage

from tasks import statistics
from tasks.gates import REGISTRY, Check, Evidence, Noise, Outcome, judge

BATCH = 8192
TOKENS = BATCH * np.arange(1, 181)
SD = 0.05  # nats; what the samples of a step do to its loss


def ask(evidence: Evidence, **thresholds: object) -> Check:
    return judge(REGISTRY["loss_near_baseline"], evidence, thresholds)


def curve(tokens: np.ndarray) -> np.ndarray:
    return 9.0 - 0.45 * np.log(tokens)


def trained(rng: np.random.Generator, samples: np.ndarray, *, excess: float = 0.0) -> tuple[np.ndarray, float]:
    """Step losses and the held-out loss at the end of one run: its samples, its numerics, and its own luck."""
    luck = statistics.SIGMA_RUN * rng.normal() + excess
    return curve(TOKENS) + samples + luck + 0.002 * rng.normal(size=TOKENS.size), float(curve(TOKENS[-1:])[0]) + luck


def stored(runs: list[tuple[np.ndarray, float]], seed: int | None) -> dict[str, Any]:
    grid = BATCH * np.array([20, 60, 120, 180])
    rows = [
        {"tokens": grid.tolist(), "held_out_loss": (curve(grid) + end - curve(TOKENS[-1:])[0]).tolist()}
        | ({} if seed is None else {"seed": seed, "step_tokens": TOKENS.tolist(), "step_loss": loss.tolist()})
        for loss, end in runs
    ]
    return {"fingerprint": "f" * 64, "batch_tokens": BATCH, "runs": rows}


def stage(loss: np.ndarray, end: float, baseline: dict[str, Any], **more: Any) -> Evidence:
    evidence = second_stage()
    frame = evidence.steps.copy()
    frame["loss"] = loss[frame["step"].to_numpy() - 1]
    return replace(evidence, steps=frame, held_out=held_out(evidence.stage, 3.2, end), baseline=baseline, **more)


def outcomes(excess: float, *, runs: int, paired: bool, count: int = 200) -> dict[Outcome, float]:
    """Share of each outcome over simulated stages."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(count):
        samples = SD * rng.normal(size=TOKENS.size)
        references = []
        for _ in range(runs):
            own = samples if paired else SD * rng.normal(size=TOKENS.size)
            references.append(trained(rng, own))
        loss, end = trained(rng, samples, excess=excess)
        found.append(ask(stage(loss, end, stored(references, seed=1 if paired else None))).outcome)
    return {outcome: found.count(outcome) / count for outcome in Outcome}


def test_an_equal_loss_passes_with_paired_data_from_one_repeat_on():
    for runs in (1, 3):
        rates = outcomes(0.0, runs=runs, paired=True)
        assert rates[Outcome.PASS] >= 0.99
        assert rates[Outcome.FAIL] == 0


def test_an_equal_loss_passes_unpaired_with_three_runs_and_hardly_ever_fails():
    rates = outcomes(0.0, runs=3, paired=False)
    assert rates[Outcome.PASS] >= 0.90
    assert rates[Outcome.FAIL] <= 0.01


@pytest.mark.parametrize(("runs", "paired"), [(1, True), (3, True), (3, False)])
def test_a_planted_excess_is_caught(runs: int, paired: bool):
    assert outcomes(0.02, runs=runs, paired=paired)[Outcome.FAIL] >= 0.90


def test_an_excess_of_just_the_margin_passes_no_more_often_than_alpha():
    for runs, paired in ((1, True), (3, False)):
        assert outcomes(0.01, runs=runs, paired=paired, count=200)[Outcome.PASS] <= 0.087  # 5%, and 2.4 sigma of 200


def test_one_run_alone_is_undecided_unless_pairs_or_repeats_tell_the_spread():
    rng = np.random.default_rng(0)
    samples = SD * rng.normal(size=TOKENS.size)
    one, other = trained(rng, samples), trained(rng, samples)
    alone = ask(stage(*one, stored([other], None)))
    assert alone.outcome is Outcome.NEED_MORE_DATA
    assert "`scaleup calibrate`" in alone.reason
    assert alone.measurement is not None and alone.measurement.kind == "person" and alone.measurement.gpu_hours > 0
    assert ask(stage(*one, stored([other], 1))).outcome is Outcome.PASS
    repeats = ask(stage(*one, stored([other], None), noise=Noise(loss_sd=0.002, repeats=8, source="n.json")))
    assert repeats.outcome is Outcome.PASS
    assert repeats.inputs == {"loss_sd": "measured, 8 repeats (n.json), 0.002 nats"}


def test_runs_of_a_smaller_stage_end_before_and_the_forecast_serves():
    rng = np.random.default_rng(5)
    loss, end = trained(rng, SD * rng.normal(size=TOKENS.size))
    short = stored([(loss, end)] * 3, seed=None)
    for run in short["runs"]:
        run["tokens"], run["held_out_loss"] = run["tokens"][:2], run["held_out_loss"][:2]
    check = ask(stage(loss, 2.9, short))
    assert check.outcome is Outcome.PASS and "the forecast registered before the stage started" in check.against
    for spoilt in ([], None, [1.0, float("nan")]):
        short["runs"][0]["tokens"] = spoilt
        assert ask(stage(loss, 2.9, short)).outcome is Outcome.INVALID
    short["fingerprint"] = "e" * 64
    assert ask(stage(loss, 2.9, short)).outcome is Outcome.INVALID


def test_pairing_is_seen_in_the_records_not_believed():
    """Another seed, other batches, or losses that do not move together: none of these is paired."""
    rng = np.random.default_rng(0)
    samples = SD * rng.normal(size=TOKENS.size)
    one, other = trained(rng, samples), trained(rng, samples)
    same = stored([other], 1)
    assert "paired with 1 reference runs on the same samples, 90 steps" in ask(stage(*one, same)).method
    elsewhere = {**same, "runs": [{**same["runs"][0], "step_tokens": (TOKENS + 1).tolist()}]}
    twice = {**same, "runs": [{**same["runs"][0], "step_tokens": (2 * TOKENS).tolist()}]}
    finer = np.sort(np.concatenate([TOKENS, TOKENS - BATCH // 2]))
    halved = {**same["runs"][0], "step_tokens": finer.tolist(), "step_loss": curve(finer).tolist()}
    shuffled = stored([trained(rng, rng.permutation(samples))], 1)
    for wrong in (stored([other], 2), elsewhere, twice, {**same, "runs": [halved]}, shuffled):
        assert ask(stage(*one, wrong)).outcome is Outcome.NEED_MORE_DATA


def test_a_reference_whose_steps_are_not_numbers_is_refused():
    rng = np.random.default_rng(0)
    one = trained(rng, SD * rng.normal(size=TOKENS.size))
    broken = stored([one], 1)
    broken["runs"][0]["step_loss"][3] = float("nan")
    assert ask(stage(*one, broken)).outcome is Outcome.INVALID


def test_a_declared_change_is_not_comparable_and_says_why():
    rng = np.random.default_rng(0)
    one = trained(rng, SD * rng.normal(size=TOKENS.size))
    evidence = stage(*one, stored([one], 1), declared={"data": "the code corpus was doubled"})
    check = ask(evidence)
    assert check.outcome is Outcome.NOT_COMPARABLE
    assert "(data: the code corpus was doubled)" in check.reason
    band = {"held_out_loss": {"low": 2.4, "median": 2.6, "high": 2.7}}
    assert ask(replace(evidence, forecast=band), against="forecast").outcome is Outcome.PASS
    assert ask(replace(evidence, held_out=evidence.held_out.iloc[:0])).outcome is Outcome.INVALID


def test_a_stage_on_other_data_than_declared_is_not_let_through():
    one = facts()
    assert ask(Evidence(one, second_stage().steps, held_out(one, 5.5, float("nan")))).outcome is Outcome.INVALID
