"""What reaches the gates from folders and files: probes, noise that was measured, declared changes, shadows."""

from __future__ import annotations

import pytest
from gate_folders import THREE_STAGES, open_ladder, write_records

from tasks.config import load_experiment
from tasks.errors import ConfigInvalid, GateFailed, StageRefused
from tasks.evaluate import evaluate
from tasks.evidence import evidence
from tasks.forecast import forecast
from tasks.gates import Noise, Outcome
from tasks.run import plan_of
from tasks.stage_dir import read_json, write_json


def stages_with(index, gates):
    stages = [dict(stage) for stage in THREE_STAGES["stages"]]
    stages[index]["gates"] = gates
    return [{"hours": 1, "steps": 90, "learning_rate": 0.002, **stage} for stage in stages]


def noise_file(configs, gpus, *, cluster="here", **said):
    values = {"repeats": 5, "launch_sd": 0.002, "step_sd": 0.01, "loss_sd": 0.003, "fingerprint": "f" * 64, **said}
    write_json(configs.root / "baselines" / f"noise_ladder_{cluster}_{gpus}gpus.json", values)


@pytest.fixture
def first(configs):
    run = open_ladder(configs)
    write_records(run.stage("gpus_8"), 100.0)
    return run.stage("gpus_8")


def test_noise_is_that_of_the_stages_size_or_of_the_nearest_and_says_which(first, configs):
    assert evidence(first).noise == Noise()
    noise_file(configs, 64, launch_sd=0.004)
    noise_file(configs, 8, cluster="elsewhere", launch_sd=0.009)
    near = evidence(first).noise
    assert (near.launch_sd, near.source) == (0.004, "noise_ladder_here_64gpus.json, the nearest to 8 GPUs")
    noise_file(configs, 8)
    assert evidence(first).noise == Noise(0.002, 0.01, 0.003, 5, "noise_ladder_here_8gpus.json")


def test_a_spread_that_is_none_is_no_measurement_and_losses_are_of_their_data(first, configs):
    noise_file(configs, 8, launch_sd=0.0, step_sd=None, fingerprint="e" * 64)
    seen = evidence(first).noise
    assert (seen.launch_sd, seen.step_sd, seen.loss_sd) == (None, None, None)


def test_a_verdict_says_which_noise_was_measured(first, configs):
    noise_file(configs, 8)
    checks = {check.gate: check for check in evaluate(first).checks}
    assert checks["steady_throughput"].inputs["launch_sd"].startswith("measured, 5 repeats (noise_ladder_here_8gpus")


def test_declared_changes_come_with_their_reasons(configs):
    run = open_ladder(configs, declares={"data": "the code corpus was doubled"})
    assert evidence(run.stage("gpus_8")).declared == {"data": "the code corpus was doubled"}


def test_an_experiment_that_declares_nothing_has_nothing_declared(first):
    assert evidence(first).declared == {}


def test_the_facts_say_what_is_at_stake_until_the_canary_and_what_follows(configs):
    run = open_ladder(configs)
    seen = evidence(run.stage("gpus_64"))
    assert (seen.stage.asks_canary, seen.stage.steps_at_stake) == (True, 40)  # 20 replayed and 20 of the canary
    assert seen.following is not None and seen.following.name == "gpus_1000"
    assert (seen.stage.memory_gib_per_gpu, seen.stage.tier_ends) == (80, (8, 1024))


def test_a_canary_in_the_shadow_stops_nothing_so_the_whole_stage_is_at_stake(configs):
    stages = stages_with(1, {"finite_loss": {}, "canary": {"shadow": True}})
    alone = plan_of(open_ladder(configs, stages=stages).stage("gpus_64")).facts()
    assert (alone.asks_canary, alone.steps_at_stake) == (False, 90)


def test_a_shadow_at_the_end_is_shown_and_does_not_count(configs):
    gates = {"finite_loss": {}, "steady_throughput": {"half_width": 0.001, "shadow": True}}
    run = open_ladder(configs, stages=stages_with(0, gates))
    write_records(run.stage("gpus_8"), 100.0)
    verdict = evaluate(run.stage("gpus_8"))
    assert verdict.outcome is Outcome.PASS
    kept = {check["gate"]: check for check in read_json(run.stage("gpus_8").verdict)["checks"]}
    assert kept["steady_throughput"]["outcome"] == "NEED_MORE_DATA" and kept["steady_throughput"]["shadow"] is True
    assert "shadow" not in kept["steady_throughput"]["thresholds"]


def test_shadows_alone_show_nothing(configs):
    run = open_ladder(configs, stages=stages_with(0, {"finite_loss": {"shadow": True}}))
    write_records(run.stage("gpus_8"), 100.0)
    with pytest.raises(GateFailed, match="INVALID\n  no gate was asked"):
        evaluate(run.stage("gpus_8"))


@pytest.mark.parametrize("shadow", [False, True])
def test_a_shadow_at_the_entry_refuses_no_stage(configs, shadow):
    gates = {"forecast_efficiency": {"reference": "gpus_8", "at_least": 1.2, "shadow": shadow}, "finite_loss": {}}
    run = open_ladder(configs, stages=stages_with(1, gates))
    write_records(run.stage("gpus_8"), 100.0)
    if not shadow:
        with pytest.raises(StageRefused, match="forecast_efficiency says FAIL"):
            forecast(run.stage("gpus_64"))
        return
    made = forecast(run.stage("gpus_64"))
    assert (made["outcome"], made["checks"][0]["outcome"]) == ("PASS", "FAIL")


def test_head_room_is_not_asked_of_a_cluster_that_does_not_say_how_much_there_is(configs):
    configs.cluster(emulated=False, memory_gib_per_gpu=None)
    stages = configs.stages()
    stages[1]["gates"] = {"memory_headroom": {}}
    configs.experiment(stages=stages)
    with pytest.raises(ConfigInvalid) as refused:
        load_experiment("tiny")
    assert str(refused.value).splitlines()[1:] == [
        "  stages.1.gates.memory_headroom: needs the field memory_gib, which the trainer 'foreign' lacks; "
        "write memory_headroom: dropped"
    ]
    stages[1]["gates"] = {"memory_headroom": {}, "finite_loss": {}}
    told = {"name": "told", "command": ["true", "{stage_dir}"], "capabilities": ["memory_gib", "save_at"]}
    configs.experiment(stages=stages, trainer=told)
    with pytest.raises(ConfigInvalid, match="memory_headroom: cluster here does not say memory_gib_per_gpu; write"):
        load_experiment("tiny")


def test_a_gate_asked_again_of_the_same_is_asked_again(configs):
    gates = {"within": [{"metric": "loss", "low": 0.0}, {"metric": "tokens", "low": 0}, {"metric": "tokens", "low": 1}]}
    run = open_ladder(configs, stages=stages_with(0, gates))
    assert list(plan_of(run.stage("gpus_8")).gates) == ["within", "within.tokens", "within.tokens.2"]
    write_records(run.stage("gpus_8"), 100.0)
    checks = evaluate(run.stage("gpus_8")).checks
    assert [(check.gate, check.unit) for check in checks] == [
        ("within", "loss"), ("within.tokens", "tokens"), ("within.tokens.2", "tokens"),
    ]  # fmt: skip


def test_a_declared_change_alone_does_not_hold_a_stage(configs):
    run = open_ladder(configs, declares={"gpu_type": "H200 in place of H100"})
    for name, speed in (("gpus_8", 100.0), ("gpus_64", 97.0)):
        forecast(run.stage(name))
        write_records(run.stage(name), speed)
    verdict = evaluate(run.stage("gpus_64"))
    outcomes = {check.gate: check.outcome for check in verdict.checks}
    assert outcomes["loss_near_baseline"] is Outcome.NOT_COMPARABLE
    assert verdict.outcome is Outcome.PASS
