"""A run is amended while it trains: from a checkpoint on, for this stage and those behind it, not for those before."""

import pytest
from running import look_to_the_end, state_of, steps, until

from tasks import cli
from tasks.amend import Asked, amend
from tasks.errors import ScaleupError, StageRefused
from tasks.launch import job_of, launch
from tasks.launchers.processes import marked
from tasks.report import report
from tasks.revisions import revisions
from tasks.run import check_recipe_unchanged, ladder_of, plan_of
from tasks.stage_dir import read_json
from tasks.tracking import summary
from tasks.watch import look

WHY = "spikes since step 12"


def asked(**changes):
    return Asked({key.replace("__", "."): value for key, value in changes.items()})


def test_a_job_under_way_goes_on_under_the_new_recipe_from_the_checkpoint(running, gate_file, capsys):
    stage = running()
    before = ladder_of(stage.run)
    words = ["amend", "tiny/run_1", "gpus_8", "--set", "learning_rate=0.001", "--set", "optimizer.clip=0.5"]
    assert cli.main([*words, "--from-step", "10", "--because", WHY, "--by", "mo"]) == 0
    said = capsys.readouterr().out
    assert "revision 2 of the recipe holds for gpus_8 after step 10:" in said
    assert "optimizer.clip: 1.0 -> 0.5" in said and "learning_rate: 0.002 -> 0.001" in said
    assert "attempt 2 goes on under it" in said and job_of(stage).attempt == 2
    assert marked(job_of(stage).name.replace(".2.", ".1.")) == []

    config = read_json(stage.config)
    assert [(s["first_step"], s["steps"], s["learning_rate"]) for s in config["spans"]] == [
        (1, 10, 0.002),
        (11, 30, 0.001),
    ]
    assert config["optimizer"]["clip"] == 0.5
    assert [path.name for path in stage.set_aside(1).iterdir()] == ["00000015.state"]
    gate_file[0].touch()
    assert look_to_the_end(stage).step == 40
    assert steps(stage) == [*range(1, 20), *range(11, 41)]

    check_recipe_unchanged(stage.run)  # the files still say what the run began with
    now = ladder_of(stage.run)
    assert now.digest != before.digest and now.stage("gpus_64").recipe.optimizer.clip == 0.5
    replayed = [span for span in now.stage("gpus_64").spans if span.phase == "replay"]
    assert {span.learning_rate for span in replayed} <= {0.001}
    tags = summary.stage_tags(stage)
    assert tags["scaleup.revision"] == "2" and WHY in tags["scaleup.amended"]
    report(stage)
    for page in (stage.report_html, stage.report_md):
        assert "Revision 2 of the recipe, after step 10, by mo" in page.read_text()


def test_unsaid_the_newest_checkpoint_is_taken_and_later_stages_alone_are_changed(running):
    stage = running()
    first = plan_of(stage)
    done = amend(stage.run.stage("gpus_64"), asked(optimizer__weight_decay=0.0), because=WHY, by="mo")
    assert (done.attempt, done.revision.number) == (None, 2)
    assert plan_of(stage) == first and state_of(stage) == "running" and job_of(stage).attempt == 1
    done = amend(stage, asked(hours=2.5, checkpointing__keep=9), because=WHY, by="mo")
    assert (done.attempt, done.revision.number, done.revision.step) == (2, 3, 15)
    assert (plan_of(stage).hours, plan_of(stage).recipe.checkpointing.keep) == (2.5, 9)
    last = plan_of(stage.run.stage("gpus_64"))
    assert (last.recipe.optimizer.weight_decay, last.recipe.checkpointing.keep, last.hours) == (0.0, 9, 1.0)
    assert [one.number for one in revisions(stage.run)] == [2, 3]


def test_a_look_that_comes_meanwhile_waits_and_follows_the_new_attempt(running, gate_file):
    stage = running()
    look(stage)
    amend(stage, asked(optimizer__eps=1e-6), because=WHY, by="mo")
    seen = look(stage)
    assert (seen.done, seen.state) == (False, "running")
    gate_file[0].touch()
    assert look_to_the_end(stage).done and not stage.cause.exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model.hidden": 16}, "model.hidden: a checkpoint fits one model, so this would be another run"),
        ({"gates": {}}, "gates: a verdict must not be bent to its outcome"),
        ({"optimiser.clip": 1.0}, "unknown amendable key 'optimiser'; did you mean optimizer?"),
        ({"optimizer.clip": -1.0}, "clip: must be greater than 0, not -1.0"),
        ({"optimizer.clop": 1.0}, "unknown key 'clop'; did you mean clip?"),
        ({"optimizer.clip": 1.0}, "optimizer.clip: 1.0 is what gpus_8 has already; there is nothing to amend"),
        ({"learning_rate": "fast"}, "learning_rate: must be a number greater than 0, not 'fast'"),
        ({"cluster.network.overlap": 0.5}, "unknown amendable key of a cluster 'network'"),
        ({"cluster.poll_seconds": 0}, "poll_seconds: must be greater than 0, not 0"),
        ({}, "nothing is what gpus_8 has already"),
    ],
)
def test_what_cannot_be_amended_is_refused_and_the_job_runs_on(begin, changes, says):
    stage = begin()
    with pytest.raises(StageRefused) as refused:
        amend(stage, Asked(changes), because=WHY, by="mo")
    assert says in str(refused.value)
    assert not stage.run.amendments.exists()


def test_a_step_without_a_checkpoint_is_refused_and_the_job_runs_on(running):
    stage = running()
    with pytest.raises(StageRefused, match="gpus_8 has no checkpoint of step 12; there are: 5, 10, 15"):
        amend(stage, Asked({"optimizer.clip": 0.5}, from_step=12), because=WHY, by="mo")
    with pytest.raises(StageRefused, match="say why"):
        amend(stage, Asked({"optimizer.clip": 0.5}), because=" ", by="mo")
    with pytest.raises(StageRefused, match="--skip-samples is our own trainer's"):
        amend(stage, Asked(skip_samples=(900, 1000)), because=WHY, by="mo")
    assert state_of(stage) == "running" and job_of(stage).attempt == 1


@pytest.mark.parametrize("words", [["--set", "clip"], ["--skip-samples", "7"], ["--set", "a=[1"]])
def test_what_is_no_key_and_value_is_wrong_usage(running, capsys, words):
    running()
    assert cli.main(["amend", "latest", "gpus_8", *words, "--because", WHY]) == 2
    assert "must be" in (said := capsys.readouterr().err) or "is no YAML" in said


def test_a_stage_that_was_stopped_is_amended_and_goes_on_when_its_run_does(begin):
    stage = begin(settings={"fail_at": 12})
    launch(stage)
    until(lambda: state_of(stage) == "failed")
    with pytest.raises(ScaleupError):
        look(stage)
    done = amend(stage, asked(learning_rate=0.001), because=WHY, by="mo")
    assert (done.attempt, done.revision.step) == (None, 10)


def test_samples_are_left_out_from_the_checkpoint_on_and_no_sooner(begin, configs):
    stage = begin(stages=configs.stages()[:1], trainer="scaleup")
    with pytest.raises(StageRefused, match="9:9 is empty"):
        amend(stage, Asked(skip_samples=(9, 9)), because=WHY, by="mo")
    amend(stage, Asked(skip_samples=(100, 116)), because="a broken shard", by="mo")
    amend(stage, Asked(skip_samples=(32, 48)), because="and another", by="mo")
    assert plan_of(stage).recipe.data.skip_samples == ((32, 48), (100, 116))
    with pytest.raises(StageRefused, match=r"data\.skip_samples: .*110 must lie beyond 116, the end before it"):
        amend(stage, Asked(skip_samples=(110, 120)), because="overlaps", by="mo")
