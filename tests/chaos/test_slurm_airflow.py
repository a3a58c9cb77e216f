"""A ladder on a real Slurm in a real Airflow: 1, 8 and 125 nodes, and runs that are marked failed or deleted."""

import pytest
from conftest import EXPERIMENT, Configs
from real_airflow import RealAirflow
from running import steps, until
from slurm import cluster

from tasks.ladder_outcome import outcome
from tasks.run import ladder_of
from tasks.stage_dir import read_json

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(420)]

ABLE = {**EXPERIMENT["trainer"], "capabilities": [*EXPERIMENT["trainer"]["capabilities"], "sigusr1"]}
LAUNCHER = {
    "kind": "slurm", "start": "command", "real_nodes": 1, "settle_seconds": 6.0, "grace_seconds": 2.0,
    "save_seconds": 5.0,
}  # fmt: skip
STAGES = [{**EXPERIMENT["stages"][0], "gpus": gpus, "steps": 60, "batch_sequences": 2 * gpus} for gpus in (8, 64, 1000)]
QUICK = {"hand_over_steps": 5, "canary_steps": 5}


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """Airflow, MLflow and a Slurm of 125 nodes; the trainer runs on the first node, the others record a stand-in."""
    home, root = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("configs")
    made = Configs(root)
    made.cluster(nodes=125, poll_seconds=0.5, launcher=LAUNCHER)
    made.experiment("up", **QUICK, stages=STAGES)
    waits = {"wait_at": 10, "wait_for": str(root / "never")}
    made.experiment("failed", **QUICK, stages=STAGES[:1], trainer={**ABLE, "settings": waits})
    made.experiment("deleted", **QUICK, stages=STAGES[:1], trainer={**ABLE, "settings": waits})
    with cluster(125) as slurm, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCALEUP_HOME", str(home))
        patch.setenv("SCALEUP_CONFIGS", str(root))
        airflow = RealAirflow()
        patch.setenv("MLFLOW_TRACKING_URI", airflow.mlflow_url)
        with airflow.up():
            airflow.slurm = slurm
            yield airflow


def test_three_stages_on_1_8_and_125_nodes_are_promoted(there):
    run = there.trigger("up", "one")
    assert there.ended(run, 240) == "success" and outcome(run).promoted
    for decided, nodes in zip(ladder_of(run).stages, (1, 8, 125), strict=True):
        stage = run.stage(decided.name)
        ran = [read_json(path)["runs"] for path in (stage.attempt(1) / "nodes").iterdir()]
        assert sorted(ran) == ["command", *["stand-in"] * (nodes - 1)]
        job = read_json(stage.attempt(1) / "slurm.json")["id"]
        assert f"NumNodes={nodes} " in there.slurm.ask("scontrol", "show", "job", job)
        assert there.slurm.jobs(read_json(stage.job)["name"]) == [job]
        assert read_json(stage.promotion)["kind"] == "rehearsal"
        logged = there.logged_tokens(stage)
        assert len(logged) == len(set(logged)) == len(set(steps(stage)))


def test_a_run_marked_failed_leaves_no_job_nor_does_one_deleted_whose_teardown_found_slurm_away(there):
    marked_failed, deleted = there.trigger("failed", "one"), there.trigger("deleted", "one")
    for run in (marked_failed, deleted):
        until(lambda run=run: 9 in (steps(run.stage("gpus_8")) if run.stage("gpus_8").metrics.exists() else []), 120)
        there.wait_for(run, "gpus_8.watch", "running")
        until(run.stage("gpus_8").watch.exists)
    left = read_json(deleted.stage("gpus_8").job)["name"]
    there.api.mark_run_failed("scale_up_failed", "one")
    assert there.ended(marked_failed) == "failed"
    assert read_json(marked_failed.stage("gpus_8").cause)["cause"] == "person"
    assert there.slurm.ask("squeue", "-h", "--me", "-o", "%j").split() == [left]

    there.slurm.do("stop-controller")
    there.api.mark_run_failed("scale_up_deleted", "one")
    assert there.ended(deleted, 240) == "failed" and there.states(deleted)["gpus_8.cancel"] == "failed"
    there.api.call("/dags/scale_up_deleted/dagRuns/one", method="DELETE")
    there.slurm.do("start-controller")
    assert there.slurm.ask("squeue", "-h", "--me", "-o", "%j %T").split() == [left, "RUNNING"]
    until(lambda: there.api.has_dag("reap"), 60)
    there.api.unpause("reap")
    until(lambda: there.slurm.ask("squeue", "-h", "--me", "-o", "%j").strip() == "", 120)
