"""Opening a run: the recipe frozen once, a person's words for a run, and who started it."""

import re

import pytest

from tasks.errors import ConfigInvalid, ScaleupError, StageRefused
from tasks.run import check_recipe_unchanged, find_run, ladder_of, new_run_id, open_run, runs
from tasks.stage_dir import RunDir, read_json, write_json


def test_the_recipe_is_frozen(configs):
    run = open_run("tiny", run_id="run_1", origin={"by": "mo"}, seed=11, last="gpus_8", note="why not")
    before = ladder_of(run)
    configs.experiment(seed=1, hand_over_steps=5)
    assert ladder_of(run) == before
    assert [s.name for s in before.stages] == ["gpus_8"]
    assert before.stages[0].seed == 11
    info = read_json(run.info)
    assert (info["by"], info["note"], info["stages"], info["seed"]) == ("mo", "why not", ["gpus_8"], 11)
    assert info["digest"] == before.digest
    assert re.fullmatch("[0-9a-f]{64}", info["environment"])


def test_opening_twice_changes_nothing(configs):
    run = open_run("tiny", run_id="run_1", origin={})
    recipe, info = run.recipe.read_bytes(), run.info.read_bytes()
    configs.experiment(seed=99)
    assert open_run("tiny", run_id="run_1", origin={"by": "someone else"}) == run
    assert (run.recipe.read_bytes(), run.info.read_bytes()) == (recipe, info)


def test_a_run_killed_while_it_was_opened_is_opened_whole(configs):
    run = open_run("tiny", run_id="run_1", origin={})
    run.info.unlink()
    open_run("tiny", run_id="run_1", origin={})
    assert run.info.exists()


def test_a_wrong_experiment_opens_no_run(configs):
    configs.experiment(seed=-1)
    with pytest.raises(ConfigInvalid):
        open_run("tiny", run_id="run_1", origin={})
    assert not RunDir.of("tiny", "run_1").path.exists()


def test_a_run_id_is_a_folder_s_name(configs):
    with pytest.raises(ScaleupError, match=r"run id 'a/\.\.' must be letters, digits, _ and - only"):
        open_run("tiny", run_id="a/..", origin={})
    assert re.fullmatch(r"\d{8}_\d{6}", new_run_id())


def test_an_unchanged_recipe_is_no_error_and_a_lost_file_is(configs):
    run = open_run("tiny", run_id="run_1", origin={})
    check_recipe_unchanged(run)
    (configs.root / "experiments" / "tiny.yaml").unlink()
    with pytest.raises(StageRefused, match=r"tiny\.yaml is gone since run run_1 began"):
        check_recipe_unchanged(run)


def test_a_run_on_another_cluster_is_compared_on_that_cluster(configs):
    configs.cluster("there", price_per_gpu_hour=9.0)
    run = open_run("tiny", run_id="run_1", origin={}, cluster="there")
    check_recipe_unchanged(run)
    assert ladder_of(run).stages[0].cluster.name == "there"


def test_runs_are_found_by_what_people_say(configs):
    configs.experiment("other")
    for at, (experiment, run_id) in enumerate([("tiny", "a"), ("tiny", "b"), ("other", "b"), ("other", "c")]):
        run = open_run(experiment, run_id=run_id, origin={})
        write_json(run.info, {**read_json(run.info), "started": float(at)})
    assert [f"{r.experiment}/{r.run_id}" for r in runs()] == ["tiny/a", "tiny/b", "other/b", "other/c"]
    said = {"a": "tiny/a", "other/b": "other/b", "latest": "other/c", "tiny/latest": "tiny/b", "tiny": "tiny/b"}
    assert {s: f"{find_run(s).experiment}/{find_run(s).run_id}" for s in said} == said
    with pytest.raises(ScaleupError, match="'b' is the id of several runs; write experiment/run_id"):
        find_run("b")
    with pytest.raises(ScaleupError, match="'z' is no run; the latest runs are other/c, other/b, tiny/b, tiny/a"):
        find_run("z")


def test_without_runs_it_says_so(configs):
    with pytest.raises(ScaleupError, match=r"there are no runs in .*home/runs yet"):
        find_run("latest")
    with pytest.raises(StageRefused, match="holds no run"):
        ladder_of(RunDir.of("tiny", "nothing"))


def test_a_run_that_has_begun_is_given_no_other_choice(configs):
    run = open_run("tiny", run_id="r", last="gpus_8", origin={})
    assert open_run("tiny", run_id="r", origin={}) == open_run("tiny", run_id="r", last="gpus_8", origin={}) == run
    with pytest.raises(StageRefused) as refused:
        open_run("tiny", run_id="r", last="gpus_64", origin={})
    assert str(refused.value) == (
        "run r has begun and cannot be given last gpus_64 (it has gpus_8); go on with it as it is, or start a new run"
    )
