"""``scaleup run``: the whole ladder without Airflow, by the same functions, on a foreign trainer and real gates."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, steps, until

from tasks.cli import main
from tasks.launchers.processes import marked
from tasks.stage_dir import RunDir, read_json


@pytest.fixture
def climb(configs, capsys):
    """Climb ``tiny`` in this process; return (exit code, stdout, the run)."""

    def call(*arguments, run_id="run_1"):
        code = main(["run", "tiny", "--run-id", run_id, "--plain", *arguments])
        return code, capsys.readouterr().out, RunDir.of("tiny", run_id)

    return call


def test_two_stages_are_climbed_and_told(climb, scaleup_home):
    code, out, run = climb("--note", "first light")
    assert code == 0, out
    assert out.splitlines()[0] == f"run tiny/run_1 in {run.path}"
    assert out.splitlines()[-1] == "all stages were promoted: gpus_8, gpus_64"
    assert "gpus_64  PASS            finite_loss: " in out
    assert read_json(run.info)["origin"] == {"command": "scaleup run", "by": read_json(run.info)["by"]}
    for name, step in (("gpus_8", 30), ("gpus_64", 70)):
        stage = run.stage(name)
        promotion = read_json(stage.promotion)
        assert (promotion["by"], promotion["checkpoint"]["step"]) == ("gates", step)
        assert promotion["checkpoint"]["path"].startswith(str(scaleup_home / "store" / f"tiny/run_1/{name}"))
        assert Path(promotion["checkpoint"]["path"]).is_file()
        assert stage.report_html.exists()
    assert run.report_html.exists()


def test_a_climbed_run_is_not_climbed_again(climb):
    climb("--last", "gpus_8")
    code, out, run = climb()
    assert code == 0
    assert "gpus_8 is promoted already" in out
    assert steps(run.stage("gpus_8")) == list(range(1, 41))
    assert not run.stage("gpus_64").path.exists()  # the run was opened with one stage, and stays so


def test_a_failed_gate_ends_the_ladder_and_a_person_may_go_on(climb, configs, capsys):
    configs.experiment(settings={"diverge_at": 25}, live={"finite": {"action": "note"}})
    code, out, run = climb()
    assert code == 1
    assert "gpus_8 ended: gpus_8 is not promoted: FAIL" in out
    assert "finite_loss says FAIL" in out
    assert not run.stage("gpus_64").job.exists()
    assert run.stage("gpus_8").report_md.exists()
    assert main(["promote", "tiny/run_1", "gpus_8", "--because", "step 25 is known", "--by", "mo"]) == 0
    capsys.readouterr()
    code, out, run = climb()
    assert code == 0
    assert read_json(run.stage("gpus_8").promotion)["person"] == "mo"
    assert read_json(run.stage("gpus_64").promotion)["by"] == "gates"
    assert "mo" in run.report_md.read_text()
    assert "step 25 is known" in run.report_md.read_text()


def test_a_failing_trainer_ends_it_with_the_log_s_last_lines(climb, configs):
    configs.experiment(settings={"fail_at": 13})
    code, out, run = climb()
    assert code == 1
    assert "gpus_8 ended before its time: the program ended with exit code 1" in out
    assert "the loss function is not defined here" in out
    assert read_json(run.stage("gpus_8").cause)["cause"] == "job_over"


def test_a_dying_trainer_is_no_one_s_business(climb, configs):
    configs.experiment(settings={"die_at": 23})
    code, _, run = climb("--last", "gpus_8")
    assert code == 0
    assert steps(run.stage("gpus_8")) == [*range(1, 23), *range(21, 41)]


def climbing():
    command = [sys.executable, "-m", "tasks.cli", "run", "tiny", "--run-id", "run_1", "--plain"]
    return subprocess.Popen(
        command, cwd=ROOT, env=dict(os.environ), stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def test_ctrl_c_ends_the_job_and_says_how_to_go_on(configs, gate_file, climb):
    configs.experiment(settings=gate_file[1])
    stage = RunDir.of("tiny", "run_1").stage("gpus_8")
    with climbing() as process:
        until(lambda: 19 in steps(stage))
        name = read_json(stage.job)["name"]
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert marked(name) == []
    assert read_json(stage.cause)["cause"] == "person"
    assert "interrupted; go on with: scaleup run tiny --run-id run_1" in out
    gate_file[0].touch()
    code, out, _ = climb()
    assert code == 0
    assert steps(stage) == [*range(1, 20), *range(16, 41)]


def test_a_killed_climb_leaves_the_job_running_and_goes_on(configs, gate_file, climb):
    configs.experiment(settings=gate_file[1])
    stage = RunDir.of("tiny", "run_1").stage("gpus_8")
    with climbing() as process:
        until(lambda: 19 in steps(stage))
        os.killpg(process.pid, signal.SIGKILL)
    assert len(marked(read_json(stage.job)["name"])) == 1
    gate_file[0].touch()
    assert climb()[0] == 0
    assert steps(stage) == list(range(1, 41))
    assert json.loads(stage.job.read_text())["attempt"] == 1


def test_a_wrong_experiment_is_exit_2_before_anything_starts(configs, capsys):
    configs.experiment(seed=-1)
    assert main(["run", "tiny"]) == 2
    assert "seed" in capsys.readouterr().err
    assert main(["run", "nothing"]) == 2
    assert "tiny" in capsys.readouterr().err
