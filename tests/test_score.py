"""A forecast against what came: errors, intervals, quantiles, and what cannot be scored."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gate_folders import open_ladder, write_records

from tasks import statistics
from tasks.evaluate import evaluate
from tasks.forecast import forecast
from tasks.score import score, summary
from tasks.stage_dir import StageDir, read_json, write_json


@pytest.fixture
def second(configs) -> StageDir:
    """A second stage with its forecast, after a healthy first one; config.json says that it was launched."""
    run = open_ladder(configs)
    for name in ("gpus_8", "gpus_64"):
        forecast(run.stage(name))
        write_json(run.stage(name).config, {})
        if name == "gpus_8":
            write_records(run.stage(name), 100.0)
    return run.stage("gpus_64")


def rows(stage: StageDir) -> dict[str, dict]:
    return {row["quantity"]: row for row in score(stage)["quantities"]}


def test_a_good_forecast_is_scored_with_its_error_and_quantile(second):
    write_records(second, 97.0)
    found = rows(second)
    said = read_json(second.forecast)
    speed = found["throughput"]
    assert speed["outcome"] == pytest.approx(97.0, rel=0.005)
    assert (speed["median"], speed["low"], speed["high"]) == tuple(
        said["throughput"][key] for key in ("median", "low", "high")
    )
    assert speed["error"] == pytest.approx(speed["outcome"] / speed["median"] - 1)
    assert speed["inside"] is True and 0.05 < speed["quantile"] < 0.95
    assert (speed["nature"], found["held_out_loss"]["nature"]) == ("modelled", "real")
    assert found["held_out_loss"]["inside"] is True
    assert read_json(second.score)["quantities"] == list(found.values())


@pytest.mark.parametrize(("speed", "inside", "below"), [(97.0, True, 0.9), (70.0, False, 0.05)])
def test_hours_and_cost_follow_from_the_speed(second, speed, inside, below):
    write_records(second, speed)
    found = rows(second)
    tokens = read_json(second.forecast)["spending"]["tokens"]
    # of foreign records without tokens_per_gpu_second the modelled hours cannot be known
    assert found["wall_seconds"]["outcome"] is None and found["wall_seconds"]["says"].startswith("unknown: ")
    lines = [json.loads(line) for line in second.metrics.read_text().splitlines()]
    for line in lines:
        if "step_seconds" in line:
            batch = 64 if line["step"] <= 90 else 512  # the replay is gpus_8's batch
            line["tokens_per_gpu_second"] = batch * 8 / 64 / line["step_seconds"]
    second.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = rows(second)
    wall = found["wall_seconds"]
    taken = sum(line.get("step_seconds", 0.0) for line in lines)
    assert wall["outcome"] == pytest.approx(taken * tokens / (90 * 512 * 8 + 20 * 64 * 8))
    assert found["gpu_hours"]["outcome"] == pytest.approx(wall["outcome"] * 64 / 3600)
    assert found["cost"]["outcome"] == pytest.approx(found["gpu_hours"]["outcome"] * 2.0)
    assert found["throughput"]["inside"] is inside and found["throughput"]["quantile"] <= below


def test_a_forecast_that_did_not_hold_is_said_to_be_outside(second):
    write_records(second, 70.0, extra=2.0)
    found = rows(second)
    assert found["throughput"]["inside"] is False and found["throughput"]["error"] < -0.25
    assert found["throughput"]["quantile"] <= 0.01
    assert found["held_out_loss"]["inside"] is False and found["held_out_loss"]["quantile"] >= 0.99
    assert summary(second) == {
        "forecast_error_throughput": found["throughput"]["error"],
        "forecast_error_held_out_loss": found["held_out_loss"]["error"],
        "forecasts_inside": 0.0,
    }


def test_a_first_stage_has_outcomes_and_nothing_to_compare_them_with(second):
    first = second.run.stage("gpus_8")
    found = rows(first)
    assert found["throughput"]["outcome"] == pytest.approx(100.0, rel=0.005)
    assert found["throughput"]["inside"] is None and "nothing was forecast" in found["throughput"]["says"]
    assert summary(first) == {}


def test_gpus_that_do_not_exist_cannot_fail(second):
    write_records(second, 97.0)
    failures = rows(second)["failures"]
    assert failures["outcome"] is None and failures["inside"] is None
    assert failures["says"].startswith("not scored: GPUs that do not exist cannot fail")


def test_a_stage_stopped_at_its_canary_is_scored_on_what_there_is(second):
    write_records(second, 70.0, until=112)
    found = rows(second)
    assert found["throughput"]["outcome"] == pytest.approx(70.0, rel=0.02)
    assert "canary" in found["throughput"]["says"]
    assert found["held_out_loss"]["outcome"] is None and found["held_out_loss"]["inside"] is None
    assert found["wall_seconds"]["says"] == "unknown: the stage ended before its last step, 180"


@pytest.mark.parametrize("spoilt", [float("nan"), 0.0, -1.0, 1e300, None])
def test_records_that_are_not_sound_are_no_outcome(second, spoilt):
    write_records(second, 97.0)
    lines = [json.loads(line) for line in second.metrics.read_text().splitlines()]
    for line in lines:
        if "step_seconds" in line:
            line["step_seconds"] = spoilt
        elif "loss" in line:
            line["loss"] = None if spoilt is None else float("nan")
    second.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = rows(second)
    assert all(row["inside"] is None and row["outcome"] is None for row in found.values())
    assert "unknown" in found["throughput"]["says"] and "unknown" in found["held_out_loss"]["says"]


def test_a_stage_that_never_ran_has_no_score(configs):
    stage = open_ladder(configs).stage("gpus_8")
    assert score(stage) is None
    forecast(stage)
    assert score(stage) is None and not stage.score.exists()


def test_the_verdict_comes_with_the_score(second):
    write_records(second, 97.0)
    evaluate(second)
    assert read_json(second.score)["stage"] == "gpus_64"


def test_the_forecast_says_how_many_failures_to_expect(second):
    said = read_json(second.forecast)["uninterrupted"]
    assert said["expected"] == pytest.approx(said["hours"] / said["mtbf_hours"])
    assert said["probability"] == pytest.approx(np.exp(-said["expected"]))
    assert said["low"] <= said["expected"] <= said["high"] or said["high"] == 0
    assert "Meta's published records" in said["says"]


def test_the_registered_quantiles_are_those_of_the_band(second):
    for key in ("throughput", "held_out_loss"):
        said = read_json(second.forecast)[key]
        grid = dict(map(tuple, said["quantiles"]))
        assert grid[0.5] == pytest.approx(said["median"])
        assert grid[0.05] == pytest.approx(said["low"]) and grid[0.95] == pytest.approx(said["high"])
        assert list(grid.values()) == sorted(grid.values())


@pytest.mark.parametrize("n", [2, 5, 20])
def test_a_standard_deviation_is_unbiased_and_its_interval_covers(n):
    draws = np.random.default_rng(n).normal(7.0, 3.0, size=(4000, n))
    found = [statistics.spread(row) for row in draws]
    assert np.mean([f.sd for f in found]) == pytest.approx(3.0, rel=0.04)
    assert np.mean([f.low <= 3.0 <= f.high for f in found]) == pytest.approx(0.95, abs=0.012)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_no_spread_without_two_finite_values(values):
    with pytest.raises(ValueError, match="must be finite and 2 are the least"):
        statistics.spread(values)


@pytest.mark.parametrize("expected", [0.001, 0.3, 4.0, 50.0])
def test_a_poisson_interval_holds_what_it_promises(expected):
    low, high = statistics.poisson_interval(expected)
    counts = np.random.default_rng(3).poisson(expected, 20_000)
    assert ((counts >= low) & (counts <= high)).mean() >= 0.895
    assert max((counts < low).mean(), (counts > high).mean()) < 0.055
