"""What teardowns missed leaves no job behind, neither here nor on Slurm."""

from running import state_of

from tasks import cli
from tasks.cancel import record_cause
from tasks.deployment import deployment_id
from tasks.launch import job_of, launch
from tasks.launchers.processes import marked
from tasks.reap import reap
from tasks.stage_dir import read_json

ON_SLURM = {"kind": "slurm", "start": "command", "real_nodes": 1, "settle_seconds": 1.0, "grace_seconds": 2.0}


def test_a_job_whose_stage_was_stopped_is_ended_and_a_watched_one_is_not(running, capsys):
    stage = running()
    assert reap() == []
    record_cause(stage, "gate", "canary says FAIL")  # and its teardown was killed before it could cancel
    assert cli.main(["reap", "--list"]) == 0
    assert "gpus_8 was stopped (gate): canary says FAIL" in capsys.readouterr().out
    assert state_of(stage) == "running"
    (line,) = reap()
    assert line.endswith("is cancelled (gate): canary says FAIL") and marked(job_of(stage).name) == []
    assert cli.main(["reap"]) == 0
    assert capsys.readouterr().out == "no job is left whose run is over\n"


def test_a_run_that_its_orchestrator_has_forgotten_is_over(running):
    stage = running()
    (line,) = reap(forgotten=lambda run: run.run_id == "run_1")
    assert "run tiny/run_1 was deleted where it was started" in line and marked(job_of(stage).name) == []
    assert read_json(stage.cause)["cause"] == "orphan"


def test_a_job_on_slurm_that_no_folder_names_is_ended_and_others_are_nobody_s_business(begin, configs, slurm, tmp_path):
    configs.cluster(launcher=ON_SLURM)
    stage = begin(settings={"wait_at": 20, "wait_for": str(tmp_path / "never")})
    name = launch(stage).name
    assert name.endswith(f".{deployment_id()}") and deployment_id() == deployment_id()
    other = slurm.ask("sbatch", "--parsable", "-J", "of.another.deployment", "-o", "/dev/null", "--wrap", "sleep 60")
    assert reap() == []
    (stage.path / "job.json").unlink()  # the rest of the folder stays: a job whose folder is gone ends by itself
    assert reap(end=False) == [f"{name}: no run's folder names it"]
    (line,) = reap()
    assert line.startswith(f"{name}: no run's folder names it; cancelled ")
    assert slurm.ask("squeue", "-h", "-j", other.strip(), "-o", "%T").strip() in ("RUNNING", "PENDING")
    slurm.ask("scancel", other.strip())
    assert reap() == []
