"""The ladder in a real Airflow: green, red, refused, ended by a person, and through kill -9 of everything there is."""

from datetime import UTC, datetime

import pytest
from conftest import EXPERIMENT, Configs
from nightly_cases import plan_file
from real_airflow import RealAirflow, kill_job
from running import records, steps, until

from tasks.ladder_outcome import outcome
from tasks.nightly import points
from tasks.nightly.night import NightDir
from tasks.run import ladder_of, runs
from tasks.stage_dir import RunDir, read_json

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(420)]

STAGES = [{**EXPERIMENT["stages"][0], "gpus": gpus, "steps": 60} for gpus in (8, 64, 1000)]
for stage in STAGES:
    stage["batch_sequences"] = 2 * stage["gpus"]
POOR = [{**stage} for stage in STAGES]
for stage in POOR[1:]:  # to this trainer half the sequences a GPU is half the speed
    stage["batch_sequences"] = stage["gpus"]
POOR[2]["gates"] = {"finite_loss": {}, "forecast_efficiency": {"reference": "gpus_8", "at_least": 0.9}}
UNSURE = {**STAGES[0], "probes": 1, "gates": {"finite_loss": {}, "steady_throughput": {"half_width": 0.00001}}}
QUICK = {"hand_over_steps": 5, "canary_steps": 5, "stages": STAGES}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files by whose appearance a trainer goes on."""
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def there(tmp_path_factory, files):
    """Airflow and MLflow, and the experiments of this module."""
    home, root = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("configs")
    made = Configs(root)
    made.cluster(nodes=125, poll_seconds=0.5)
    made.experiment("plain", **QUICK)
    made.experiment("poor", **{**QUICK, "stages": POOR})
    made.experiment("unsure", **{**QUICK, "stages": [UNSURE]})
    made.experiment("unheard", **{**QUICK, "stages": [{**UNSURE, "probes": 0}]}, decision_hours=0.001)
    for name in ("killed", "stopped", "ended"):
        made.experiment(name, **QUICK, settings={"wait_at": 10, "wait_for": str(files / name)})
    two = {**QUICK, "stages": STAGES[:2]}
    made.experiment("cleared", **two, settings={"wait_at": 70, "wait_for": str(files / "cleared")})
    made.cluster("dark", nodes=1, poll_seconds=0.5)
    one = {**QUICK, "cluster": "dark", "stages": STAGES[:1]}
    made.experiment("dusk", **one)
    made.experiment("dawn", **one, settings={"wait_at": 10, "wait_for": str(files / "dawn")})
    plan_file(root, {"experiments": ["dusk", "dawn"], "cadence": "nightly"}, poll_seconds=0.5)
    (root / "experiments" / "broken.yaml").write_text("cluster: here\nstages: nonsense\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCALEUP_HOME", str(home))
        patch.setenv("SCALEUP_CONFIGS", str(root))
        airflow = RealAirflow()
        patch.setenv("MLFLOW_TRACKING_URI", airflow.mlflow_url)
        with airflow.up():
            yield airflow


def test_one_ladder_is_refused_one_has_fewer_stages_and_of_one_nobody_answers(there):
    red, short = there.trigger("poor", "all"), there.trigger("plain", "one", last="gpus_8", seed=3, note="only one")
    unheard = there.trigger("unheard", "no_answer")  # its verdict is undecided, and nobody answers
    assert there.ended(red) == "failed" and there.ended(short) == "success"

    states = there.states(red)
    assert states["gpus_64.promote"] == "success" and states["gpus_1000.forecast"] == "failed"
    assert states["gpus_1000.launch"] == "upstream_failed" and not red.stage("gpus_1000").job.exists()
    assert there.tries(red, "gpus_1000.forecast") == 1  # a refusal is not asked for again
    assert outcome(red).sentence.startswith("gpus_1000 was not promoted: forecast_efficiency says FAIL: 1000 GPUs are ")
    assert red.stage("gpus_1000").report_html.exists() and red.report_html.exists()

    states = there.states(short)
    for step in ("forecast", "launch", "watch", "evaluate", "promote", "cancel", "report"):
        assert states[f"gpus_64.{step}"] == states[f"gpus_1000.{step}"] == "skipped"
    assert outcome(short).sentence == "all stages were promoted: gpus_8"
    assert there.ended(unheard) == "failed" and there.states(unheard)["gpus_8.ask"] == "failed"
    assert there.tries(unheard, "gpus_8.ask") == 1 and not unheard.stage("gpus_8").promotion.exists()
    info = read_json(short.info)
    assert (info["last"], info["seed"], info["note"]) == ("gpus_8", 3, "only one")
    assert info["origin"]["url"].endswith("/dags/scale_up_plain/runs/one")


def test_a_malformed_experiment_is_an_import_error_and_takes_no_other_away(there):
    errors = until(there.api.import_errors, 90)
    assert len(errors) == 1 and "broken.yaml is not a valid experiment" in errors[0]
    assert there.api.has_dag("scale_up_plain") and not there.api.has_dag("scale_up_broken")


def test_everything_is_killed_and_the_same_run_finishes_with_each_step_once(there, files):
    run = there.trigger("killed", "one")
    stage = run.stage("gpus_8")
    until(lambda: 9 in (steps(stage) if stage.metrics.exists() else []), 90)
    there.wait_for(run, "gpus_8.watch", "running")

    kill_job(stage)  # at step 9; its newest checkpoint is of step 5
    until(lambda: steps(stage).count(9) == 2)

    assert there.kill_tasks() == 1
    there.wait_for(run, "gpus_8.watch", "up_for_retry")
    there.wait_for(run, "gpus_8.watch", "running")

    there.kill_service("mlflow")

    until(stage.watch.exists)
    seen = stage.watch.read_text()  # an exception inside a look
    stage.watch.write_text("{")
    there.wait_for(run, "gpus_8.watch", "up_for_retry")
    stage.watch.write_text(seen)
    there.wait_for(run, "gpus_8.watch", "running")

    there.kill_service("airflow-scheduler")
    tried = there.tries(run, "gpus_8.watch")
    until(lambda: there.tries(run, "gpus_8.watch") > tried, 60)
    there.wait_for(run, "gpus_8.watch", "running")

    assert not stage.cause.exists()
    (files / "killed").touch()
    assert there.ended(run, 180) == "success"
    assert read_json(stage.attempt(1) / "exit.json")["restarts"] == 1
    for decided in ladder_of(run).stages:
        stage = run.stage(decided.name)
        assert read_json(stage.job)["attempt"] == 1 and not stage.attempt(2).exists()
        logged = there.logged_tokens(stage)
        assert len(logged) == len(set(logged)) == len(set(steps(stage)))
        assert (read_json(stage.promotion)["by"], read_json(stage.promotion)["kind"]) == ("gates", "rehearsal")
        assert stage.report_html.exists()
    assert run.report_html.exists() and outcome(run).promoted
    assert records(run.stage("gpus_8")).count('"kind": "header"') == 2


TASKS = ("forecast", "launch", "watch", "evaluate", "promote", "cancel", "report")


def test_a_stage_s_tasks_cleared_while_the_next_one_runs_change_nothing(there, files):
    run = there.trigger("cleared", "one")
    first, second = run.stage("gpus_8"), run.stage("gpus_64")
    until(lambda: 69 in steps(second), 120)
    there.wait_for(run, "gpus_64.watch", "running")
    there.wait_for(run, "gpus_8.report", "success")
    known = [path.read_bytes() for path in kept(first) + kept(second)[:2]]

    for some in (TASKS[::2], TASKS[1::2]):  # none with a neighbour, on which it would wait
        tasks = [f"gpus_8.{name}" for name in some]
        tried = {task: there.tries(run, task) for task in tasks}
        there.api.clear("scale_up_cleared", "one", tasks)
        for task in tasks:
            until(lambda task=task, tried=tried: there.tries(run, task) > tried[task], 60)
            there.wait_for(run, task, "success")
    assert [path.read_bytes() for path in kept(first) + kept(second)[:2]] == known
    assert steps(second)[-1] == 69

    (files / "cleared").touch()
    assert there.ended(run) == "success" and outcome(run).promoted
    for stage in (first, second):
        assert not stage.attempt(2).exists() and records(stage).count('"kind": "header"') == 1
        assert read_json(stage.attempt(1) / "exit.json")["restarts"] == 0
        logged = there.logged_tokens(stage)
        assert len(logged) == len(set(logged)) == len(set(steps(stage)))


def kept(stage):
    """Return the files that say which job was started, once, and what was promoted."""
    return [stage.job, stage.attempt(1) / "supervisor.json", stage.metrics, stage.promotion]


@pytest.mark.parametrize("what", ["task", "run"])
def test_a_person_marks_it_as_failed_and_the_job_ends(there, what):
    name = {"task": "stopped", "run": "ended"}[what]
    run = there.trigger(name, "one")
    stage = run.stage("gpus_8")
    until(lambda: 9 in (steps(stage) if stage.metrics.exists() else []), 90)
    there.wait_for(run, "gpus_8.watch", "running")
    # A look has said which try it is, so that "failed" can be told from tries used up.
    until(stage.watch.exists)
    if what == "task":
        there.api.mark_task(f"scale_up_{name}", "one", "gpus_8.watch", "failed")
    else:
        there.api.mark_run_failed(f"scale_up_{name}", "one")
    assert there.ended(run) == "failed"
    assert read_json(stage.cause)["cause"] == "person"
    assert read_json(stage.attempt(1) / "exit.json")["reason"] == "cancelled"
    assert stage.report_html.exists() and run.report_html.exists()
    assert "gpus_8 was not promoted: it was stopped (person)" in outcome(run).sentence


@pytest.mark.parametrize("answer", ["Approve", "Reject"])
def test_an_undecided_verdict_buys_its_probe_and_then_asks_a_person(there, answer):
    run = there.trigger("unsure", answer)
    stage = run.stage("gpus_8")
    assert "steady_throughput" in there.question(run, "gpus_8.ask")
    assert read_json(stage.verdict)["outcome"] == "NEED_MORE_DATA" and stage.report_html.exists()
    assert [probe.name for probe in stage.probes] == ["gpus_8.1"]

    there.answer(run, "gpus_8.ask", answer, because="the noise is the tester's")
    assert there.ended(run) == {"Approve": "success", "Reject": "failed"}[answer]
    if answer == "Approve":
        promotion = read_json(stage.promotion)
        assert (promotion["by"], promotion["person"]) == ("person", there.api.user)
        assert promotion["because"] == "the noise is the tester's"
    else:
        assert not stage.promotion.exists()


def test_a_night_whose_tasks_are_killed_completes_without_a_second_run(there, files):
    night = f"{datetime.now(UTC).year}-01-01"  # the last one that its cron line has seen: switched on, it is run
    stage = RunDir.of("dawn", f"nightly_{night}__1").stage("gpus_8")
    until(lambda: there.api.has_dag("nightly_regression"), 90)
    there.api.unpause("nightly_regression")
    until(lambda: 9 in (steps(stage) if stage.metrics.exists() else []), 90)
    until(lambda: points.read("dusk", night, 0), 90)
    there.kill_tasks()
    (files / "dawn").touch()

    def ended():
        found = there.api.state("nightly_regression", f"scheduled__{night}T00:00:00+00:00")
        return found if found in ("success", "failed") else None

    assert until(ended, 120) == "success"
    assert not read_json(NightDir(night).conclusion)["red"] and NightDir(night).report.exists()
    for name in ("dusk", "dawn"):
        (run,) = runs(name)
        assert run.stage("gpus_8").metrics.read_text().count('"kind": "header"') == 1
        own, unheard = points.past(name)
        assert unheard == "" and [point.key for point in own] == [f"{name}/{night}/0"]
    home = points.folder()
    with pytest.MonkeyPatch.context() as patch:  # another home reads the same past from MLflow
        patch.setenv("SCALEUP_HOME", str(files / "elsewhere"))
        assert points.folder() != home and points.past("dusk")[0][0].values["held_out_loss"] > 0
