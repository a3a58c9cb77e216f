"""What is registered before a stage starts, and what refuses it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from gate_folders import loss_after, open_ladder, write_records

from tasks import statistics
from tasks.errors import StageRefused
from tasks.forecast import forecast
from tasks.promote import override
from tasks.stage_dir import read_json, write_json


def test_of_the_first_stage_little_is_known_and_that_is_said(configs):
    run = open_ladder(configs)
    made = forecast(run.stage("gpus_8"))
    assert made["outcome"] == "PASS"
    assert made["checks"] == []
    assert made["throughput"]["median"] is None
    assert made["throughput"]["says"] == "unknown: no stage before gpus_8 has records to forecast from"
    assert made["held_out_loss"]["says"] == "unknown: gpus_8 goes on from no stage of this run"
    assert made["gpu_hours"] == {"median": None, "low": None, "high": None, "at_most": 8.0}
    assert made["cost"]["at_most"] == 16.0
    assert made == read_json(run.stage("gpus_8").forecast)


def test_the_second_stage_is_forecast_from_the_records_of_the_first(configs):
    run = open_ladder(configs)
    write_records(run.stage("gpus_8"), 100.0)
    stage = run.stage("gpus_64")
    made = forecast(stage)
    assert made["outcome"] == "PASS"
    speed = made["throughput"]
    assert speed["median"] == pytest.approx(100.0 * 0.97, rel=0.01)
    assert speed["low"] < speed["median"] < speed["high"]
    assert "a network tier that no record has seen" in speed["says"]
    steps, sequence = 90, 8
    tokens = steps * 512 * sequence + 20 * 64 * sequence  # its own, and the replay of gpus_8's
    assert made["spending"]["tokens"] == tokens
    assert made["wall_seconds"]["median"] == pytest.approx(tokens / (speed["median"] * 64))
    assert made["gpu_hours"]["median"] == pytest.approx(tokens / speed["median"] / 3600)
    assert made["cost"]["median"] == pytest.approx(made["gpu_hours"]["median"] * 2.0)
    hours = made["wall_seconds"]["median"] / 3600
    assert made["uninterrupted"]["probability"] == pytest.approx(math.exp(-hours / (8.0 * 128 / 8)))
    assert 0.9 < made["wrong"]["p_right"] < 1
    assert 0 < made["wrong"]["probe_gpu_hours"] < made["wrong"]["error_gpu_hours"]
    [check] = made["checks"]
    assert (check["gate"], check["outcome"]) == ("forecast_efficiency", "PASS")
    assert check["thresholds"]["reference"] == "gpus_8"


def test_the_loss_forecast_covers_the_bend_of_the_curve(configs):
    run = open_ladder(configs)
    plan = write_records(run.stage("gpus_8"), 100.0)
    band = forecast(run.stage("gpus_64"))["held_out_loss"]
    target = band["tokens"]
    assert target == 90 * 64 * 8 + 90 * 128 * 8
    start = loss_after(plan.tokens_last)
    assert band["low"] < loss_after(target) < band["high"]
    assert band["high"] < start


def test_without_enough_held_out_losses_training_losses_stand_in(configs):
    run = open_ladder(configs)
    first = run.stage("gpus_8")
    write_records(first, 100.0)
    lines = [json.loads(line) for line in first.metrics.read_text().splitlines()]
    kept = [line for line in lines if line.get("at") != "step"]
    first.metrics.write_text("".join(json.dumps(line) + "\n" for line in kept))
    band = forecast(run.stage("gpus_64"))["held_out_loss"]
    assert "training losses moved by" in band["says"]
    assert band["low"] < loss_after(band["tokens"]) < band["high"]


def test_a_bad_slope_is_refused_with_what_failed_by_how_much_and_what_to_do(configs):
    run = open_ladder(configs)
    write_records(run.stage("gpus_8"), 100.0)
    write_records(run.stage("gpus_64"), 86.0)  # 5% a doubling
    stage = run.stage("gpus_1000")
    with pytest.raises(StageRefused) as refused:
        forecast(stage)
    text = str(refused.value)
    assert text.startswith(
        "gpus_1000 is refused before it starts:\n  forecast_efficiency says FAIL: 1000 GPUs are expected"
    )
    assert "the chance of at least 90% is" in text
    assert 'scaleup promote ladder/run_1 gpus_1000 --because "..."' in text
    kept = read_json(stage.forecast)
    assert kept["outcome"] == "FAIL"
    assert kept["checks"][0]["estimate"] < 0.86
    with pytest.raises(StageRefused):
        forecast(stage)


def test_a_persons_leave_lets_a_refused_stage_go_on_and_the_refusal_stays_written(configs):
    run = open_ladder(configs)
    write_records(run.stage("gpus_8"), 100.0)
    write_records(run.stage("gpus_64"), 86.0)
    stage = run.stage("gpus_1000")
    with pytest.raises(StageRefused):
        forecast(stage)
    override(stage, "the network is mended", "someone")
    made = forecast(stage)
    assert made["outcome"] == "FAIL"
    assert made == read_json(stage.forecast)


def test_a_forecast_that_passed_is_registered_once(configs):
    run = open_ladder(configs)
    write_records(run.stage("gpus_8"), 100.0)
    made = forecast(run.stage("gpus_64"))
    write_records(run.stage("gpus_8"), 50.0)
    assert forecast(run.stage("gpus_64")) == made


def test_no_records_of_the_stage_before_refuse_the_next(configs):
    run = open_ladder(configs)
    with pytest.raises(
        StageRefused, match="forecast_efficiency says INVALID: cannot be judged: there are no train steps"
    ):
        forecast(run.stage("gpus_64"))


def test_the_budget_is_a_veto(configs):
    run = open_ladder(configs, budget_gpu_hours=1072.0)  # what the stages may take at most
    forecast(run.stage("gpus_8"))
    write_records(run.stage("gpus_8"), 0.1)  # so slow that 64 GPUs need 1,054 GPU-hours
    with pytest.raises(StageRefused) as refused:
        forecast(run.stage("gpus_64"))
    assert "budget says FAIL: gpus_8, gpus_64 need" in str(refused.value)
    assert "the budget is 1,072" in str(refused.value)


def test_probes_are_paid_from_the_budget(configs):
    run = open_ladder(configs, budget_gpu_hours=1072.0)
    forecast(run.stage("gpus_8"))
    write_records(run.stage("gpus_8"), 1.0)
    bought = {"gpus": 8, "steps": 60, "inside": False, "time": 0.0, "gpu_hours": 1000.0}
    write_json(run.stage("gpus_8").probe("gpus_8.1").order, bought)
    with pytest.raises(StageRefused, match=r"budget says FAIL: .* GPU-hours, 1,000\.0 of them for probes"):
        forecast(run.stage("gpus_64"))


@pytest.mark.parametrize("floor", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("power", [0.1, 0.3, 0.6])
def test_bands_cover_power_laws_whatever_their_floor(floor: float, power: float):
    done, planned = np.full(90, 8192.0), np.full(90, 16384.0)
    worth = statistics.effective_tokens(np.concatenate([done, planned]), statistics.critical_batch(done.sum())[1])
    curve = floor + 3.0 * (worth / worth[0]) ** -power
    after = np.array([31, 47, 62, 70, 90])
    found = statistics.forecast_loss(done, after, curve[after - 1], planned)
    assert found.low <= curve[-1] <= found.high
    assert found.line <= curve[-1] + 1e-9  # a line in ln tokens never knows of the bend
    assert found.high < curve[89]


def test_a_loss_forecast_wants_a_few_losses():
    with pytest.raises(ValueError, match="the last doubling of tokens holds 2 losses; 3 are the least"):
        statistics.forecast_loss(np.full(90, 8192.0), [10, 60, 90], [3.0, 2.5, 2.4], np.full(90, 8192.0))
