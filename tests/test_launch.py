"""Launching: what it demands, and one job whatever is killed when."""

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from conftest import FOREIGN_TRAINER
from running import KILL_AT, in_process, records, steps, until

from tasks.errors import CheckpointUnsound, StageRefused
from tasks.launch import job_of, launch, launcher_of
from tasks.launchers.processes import marked
from tasks.promote import promote
from tasks.records import follow, read_metrics
from tasks.run import open_run, plan_of
from tasks.stage_dir import read_json, write_json
from training import manifest
from training.config import read_config


def state_of(stage):
    return launcher_of(plan_of(stage)).poll(job_of(stage))


def finish(stage):
    until(lambda: state_of(stage).over)
    return state_of(stage)


def climb_first(stage):
    """Train the first stage to its end and promote it, its verdict granted."""
    launch(stage)
    assert finish(stage).state == "succeeded"
    write_json(stage.verdict, {"outcome": "PASS", "checks": [{"gate": "finite_loss"}]})
    promotion = promote(stage)
    following = stage.run.stage("gpus_64")
    write_json(following.forecast, {"outcome": "PASS", "checks": []})
    return following, promotion


def test_a_stage_is_trained_from_its_config(begin):
    stage = begin()
    job = launch(stage)
    assert finish(stage).state == "succeeded"
    config = read_config(stage.path)
    assert (config.stage, config.attempt, config.last_step, config.hand_over_step) == ("gpus_8", 1, 40, 30)
    assert steps(stage) == list(range(1, 41))
    assert job.name.startswith("tiny.run_1.gpus_8.1.")
    assert launch(stage) == job  # over and well: found, not started again
    assert steps(stage) == list(range(1, 41))


def test_without_a_forecast_nothing_starts(begin):
    stage = begin()
    stage.forecast.unlink()
    with pytest.raises(StageRefused, match=r"gpus_8 may not start: forecast\.json is missing"):
        launch(stage)
    assert job_of(stage) is None


def test_a_forecast_against_it_refuses_unless_a_person_gives_leave(begin):
    stage = begin()
    write_json(stage.forecast, {"outcome": "FAIL", "checks": []})
    with pytest.raises(StageRefused, match=r"its forecast says FAIL.*scaleup promote tiny/run_1 gpus_8 --because"):
        launch(stage)
    write_json(stage.leave, {"because": "measured by hand", "person": "mo"})
    launch(stage)
    assert finish(stage).state == "succeeded"


def test_the_stage_before_must_be_promoted(begin):
    stage = begin().run.stage("gpus_64")
    write_json(stage.forecast, {"outcome": "PASS", "checks": []})
    with pytest.raises(
        StageRefused, match=r"gpus_64 may not start: gpus_8 is not promoted \(promotion.json is missing\)"
    ):
        launch(stage)
    with pytest.raises(StageRefused, match=r'scaleup promote tiny/run_1 gpus_8 --because "\.\.\."'):
        launch(stage)
    assert not stage.job.exists()


def test_a_stage_from_scratch_needs_the_stage_before_all_the_same(begin, configs):
    stages = [dict(s) for s in yaml.safe_load((configs.root / "experiments/tiny.yaml").read_text())["stages"]]
    stages[1]["start"] = "scratch"
    stage = begin(stages=stages).run.stage("gpus_64")
    write_json(stage.forecast, {"outcome": "PASS", "checks": []})
    with pytest.raises(StageRefused, match="gpus_8 is not promoted"):
        launch(stage)


def test_the_next_stage_starts_from_the_promoted_checkpoint(begin):
    following, _ = climb_first(begin())
    launch(following)
    assert finish(following).state == "succeeded"
    start = read_config(following.path).start
    assert start.checkpoint == str(following.start / "step_00000030" / "00000030.state")
    assert steps(following)[0] == 31  # it cannot replay: the canary goes on at the hand-over


def test_a_checkpoint_changed_since_its_promotion_is_refused(begin):
    following, promotion = climb_first(begin())
    (chunk,) = Path(promotion["checkpoint"]["kept_in"][0], "chunks").rglob("*/*")
    with chunk.open("a") as file:
        file.write(" ")
    with pytest.raises(CheckpointUnsound, match=r"gpus_64 cannot start: .*/chunks/.* has \d+ bytes; \d+ were stored"):
        launch(following)


def test_another_checkpoint_than_the_promoted_one_is_refused(begin):
    following, promotion = climb_first(begin())
    promotion["checkpoint"]["manifest_sha256"] = "0" * 64
    write_json(following.run.stage("gpus_8").promotion, promotion)
    with pytest.raises(CheckpointUnsound, match="another checkpoint of step 30 than the one promoted"):
        launch(following)


def test_a_rehearsals_promotion_opens_no_real_stage(configs, begin):
    configs.cluster("real", emulated=False)
    text = yaml.safe_load((configs.root / "experiments/tiny.yaml").read_text())
    text["stages"][1] |= {"cluster": "real", "start": "scratch"}
    following, promotion = climb_first(begin(stages=text["stages"]))
    assert promotion["kind"] == "rehearsal"
    with pytest.raises(StageRefused, match="the promotion of gpus_8 is a rehearsal's, and a rehearsal never opens"):
        launch(following)
    assert not following.job.exists()


def test_a_changed_recipe_is_refused_with_the_difference(begin, configs):
    stage = begin()
    configs.experiment(seed=8, description="words are free to change")
    with pytest.raises(StageRefused) as refused:
        launch(stage)
    assert str(refused.value).splitlines() == [
        "the recipe of tiny changed since run run_1 began:",
        "  seed: 7 -> 8",
        "restore the file, or start a new run with the changed recipe",
    ]
    configs.experiment(description="words are free to change")
    launch(stage)


def test_a_changed_cluster_is_a_changed_recipe(begin, configs):
    stage = begin()
    configs.cluster(flops_per_gpu=5.0e14)
    with pytest.raises(StageRefused, match=r"clusters\.here\.flops_per_gpu: 4"):
        launch(stage)


def test_a_running_job_is_found_whatever_the_recipe_says_by_now(begin, configs, gate_file):
    stage = begin(settings=gate_file[1])
    job = launch(stage)
    configs.experiment(seed=8)
    assert launch(stage) == job


def test_launches_at_once_start_one_job(begin, gate_file):
    stage = begin(settings=gate_file[1])
    with ThreadPoolExecutor(4) as pool:
        jobs = list(pool.map(launch, [stage] * 4))
    assert len({job.name for job in jobs}) == 1
    until(lambda: 19 in steps(stage))
    assert len(marked(jobs[0].name)) == 1


BOUNDARIES = {
    "after config.json": "import tasks.launch\nafter(tasks.launch, 'write_json', 1)",
    "after job.json": "import tasks.launch\nafter(tasks.launch, 'write_json', 2)",
    "after the supervisor started": "import tasks.launchers.local as local\nafter(local, '_start_supervisor', 1)",
    "while a file is being renamed": "import os\nafter(os, 'replace', 2)",
}


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_launch_killed_at_any_boundary_and_repeated_makes_one_job(begin, gate_file, boundary):
    go_on, settings = gate_file
    stage = begin(settings=settings)
    killed = in_process(stage, "from tasks.launch import launch; launch(stage)", KILL_AT + BOUNDARIES[boundary])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    job = launch(stage)
    assert job.attempt == 1
    until(lambda: 19 in steps(stage))
    assert len(marked(job.name)) == 1
    go_on.touch()
    assert finish(stage).state == "succeeded"
    assert steps(stage) == list(range(1, 41))  # no step twice: nobody else wrote
    assert [p.name for p in stage.path.glob("attempt_*")] == ["attempt_1"]


def test_a_failed_job_launched_again_is_the_next_attempt_from_the_newest_checkpoint(begin, configs):
    stage = begin(settings={"fail_at": 23})
    launch(stage)
    assert finish(stage).exit_code == 1
    frozen = read_json(stage.run.recipe)
    frozen["experiment"]["trainer"]["settings"] = {}
    write_json(stage.run.recipe, frozen)  # the recipe as if it had never held the fault
    configs.experiment()
    job = launch(stage)
    assert job.attempt == 2
    assert finish(stage).state == "succeeded"
    assert steps(stage) == [*range(1, 23), *range(21, 41)]
    assert read_config(stage.path).attempt == 2


def test_a_killed_trainer_goes_on_in_the_same_attempt(begin):
    stage = begin(settings={"die_at": 23})
    launch(stage)
    ended = finish(stage)
    assert (ended.state, ended.restarts) == ("succeeded", 1)
    assert steps(stage) == [*range(1, 23), *range(21, 41)]
    assert job_of(stage).attempt == 1


def test_a_lost_job_is_followed_by_the_next_attempt(begin, gate_file):
    go_on, settings = gate_file
    stage = begin(settings=settings)
    first = launch(stage)
    until(lambda: 19 in steps(stage))
    os.kill(json.loads((Path(first.folder) / "supervisor.json").read_text())["pid"], signal.SIGKILL)
    until(lambda: state_of(stage).state == "lost")
    go_on.touch()
    second = launch(stage)
    assert (second.attempt, marked(first.name)) == (2, [])
    assert finish(stage).state == "succeeded"
    assert steps(stage) == [*range(1, 20), *range(16, 41)]


def test_two_homes_have_jobs_of_different_names(begin, monkeypatch, tmp_path):
    stage = begin()
    here = launch(stage).name
    finish(stage)
    monkeypatch.setenv("SCALEUP_HOME", str(tmp_path / "other"))
    run = open_run("tiny", run_id="run_1", origin={})
    other = run.stage("gpus_8")
    write_json(other.forecast, {"outcome": "PASS"})
    assert launch(other).name != here
    finish(other)


def test_records_begin_with_the_header_of_the_trainer(begin):
    stage = begin()
    launch(stage)
    finish(stage)
    assert json.loads(records(stage).splitlines()[0])["trainer"] == "foreign"


def test_our_own_trainer_killed_whole_goes_on_where_its_newest_checkpoint_stands(begin, configs):
    configs.cluster(environment={"variables": {"OMP_NUM_THREADS": "1"}})
    model = {"layers": 1, "hidden": 16, "heads": 2, "ffn": 16, "vocabulary": 256}
    recipe = {"model": model, "sequence_length": 16, "precision": "float32", "checkpointing": {"every_steps": 10}}
    first = configs.stages()[0] | {"steps": 120, "rehearsal": {"batch_sequences": 16}}
    stage = begin(
        trainer="scaleup", train=recipe, rehearsal={"processes": 1, "held_out": {"sequences": 16}}, stages=[first]
    )
    job = launch(stage)
    until(lambda: len(manifest.whole(stage.checkpoints)) > 1, seconds=120)
    for process in marked(job.name):
        os.kill(process["pid"], signal.SIGKILL)
    ended = until(lambda: (state := state_of(stage)).over and state, seconds=120)
    assert (ended.state, ended.restarts) == ("succeeded", 1), job.log.read_text()[-2000:]
    metrics = read_metrics(stage.metrics)
    assert metrics.steps["step"].tolist() == list(range(1, 121))
    assert metrics.attempts == 2
    written, _ = follow(stage.metrics, 0)
    again = [at for at, record in enumerate(written) if record.get("kind") == "header"][1]
    goes_on = next(record["step"] for record in written[again:] if record["kind"] == "step")
    assert (goes_on > 1, goes_on % 10) == (True, 1)  # after a checkpoint, not from the start


def test_the_cluster_s_environment_reaches_the_job_and_secrets_only_by_name(begin, configs, tmp_path):
    secrets = tmp_path / "secrets"
    secrets.write_text("TOKEN=s3cret-value\n")
    secrets.chmod(0o600)
    around = {"kind": "venv", "venv": sys.prefix, "variables": {"COLOUR": "blue"}, "setup": ["export X=1"]}
    configs.cluster(environment={**around, "secrets": {"file": str(secrets), "names": ["TOKEN"]}})
    trainer = {"command": ["{python}", str(FOREIGN_TRAINER), "{stage_dir}"], "capabilities": ["save_at", "checkpoints"]}
    stage = begin(trainer=trainer)
    job = launch(stage)
    assert finish(stage).state == "succeeded", records(stage)
    assert (job.command[0], job.venv, job.variables) == ("python", sys.prefix, {"COLOUR": "blue"})
    assert (job.setup, job.secrets) == (("export X=1",), ("TOKEN",))
    written = [path for path in stage.run.path.rglob("*") if path.is_file()]
    assert not [path for path in written if b"s3cret-value" in path.read_bytes()]
