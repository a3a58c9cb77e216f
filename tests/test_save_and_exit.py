"""SIGUSR1, save and exit: before its hours are up or a person ends it, a trainer that can keeps its very last step."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trained
from conftest import EXPERIMENT
from launching import SLEEPER, printed, program
from running import steps, until

from tasks.cancel import cancel, mark_person, record_cause
from tasks.errors import StageStopped
from tasks.launch import job_of, launch, launcher_of
from tasks.launchers.processes import marked
from tasks.run import plan_of
from tasks.stage_dir import read_json
from tasks.watch import look
from training import manifest
from training.config import Checkpointing

FOREIGN = EXPERIMENT["trainer"]
ABLE = {**FOREIGN, "capabilities": [*FOREIGN["capabilities"], "sigusr1"]}
WAITS_AT = 18  # its periodic checkpoints are of every 5th step


@pytest.fixture
def waiting(begin, tmp_path):
    """A stage whose trainer waits before step 18, and the file for which it waits."""
    file = tmp_path / "go_on"

    def start(trainer=ABLE, **changes):
        settings = {"wait_at": WAITS_AT, "wait_for": str(file)}
        stage = begin(trainer={**trainer, "settings": settings}, **changes)
        launch(stage)
        until(lambda: WAITS_AT - 1 in steps(stage))
        return stage

    return start, file


def saved_steps(stage):
    return sorted(int(path.stem) for path in stage.checkpoints.glob("*.state"))


def go_on_to_the_end(stage, file):
    """Launch the next attempt, as a cleared `launch` does, and return the step numbers of both."""
    file.touch()
    assert launch(stage).attempt == 2
    until(lambda: look(stage).done)
    return steps(stage)


def test_hours_up_saves_the_very_last_step_and_the_next_attempt_goes_on_from_it(waiting, configs):
    start, file = waiting
    stages = configs.stages()
    stages[0]["hours"] = 6.0 / 3600  # asked to save in their second half
    stage = start(stages=stages)
    until(lambda: launcher_of(plan_of(stage)).poll(job_of(stage)).over)
    state = launcher_of(plan_of(stage)).poll(job_of(stage))
    assert (state.state, state.reason, state.exit_code) == ("failed", "its hours were up", 0)
    assert saved_steps(stage)[-1] == steps(stage)[-1] == WAITS_AT
    with pytest.raises(StageStopped, match="its hours were up"):
        look(stage)
    assert read_json(stage.cause)["cause"] == "hours"
    assert go_on_to_the_end(stage, file) == list(range(1, 41))  # none lost, none done twice


def test_a_person_s_cancel_saves_too(waiting):
    start, file = waiting
    stage = start()
    mark_person(stage, "mo", "the GPUs are needed")
    cancel(stage)
    assert launcher_of(plan_of(stage)).poll(job_of(stage)).state == "cancelled"
    assert saved_steps(stage)[-1] == WAITS_AT
    assert go_on_to_the_end(stage, file) == list(range(1, 41))


def test_what_a_gate_ends_is_not_saved(waiting):
    stage = waiting[0]()
    record_cause(stage, "gate", "the loss left its band")
    cancel(stage)
    assert saved_steps(stage)[-1] == 15
    assert steps(stage)[-1] == WAITS_AT - 1
    assert "SIGUSR1" not in job_of(stage).log.read_text()


def test_a_trainer_without_the_capability_is_ended_as_ever(waiting):
    start, file = waiting
    stage = start(trainer=FOREIGN)
    mark_person(stage, "mo", "the GPUs are needed")
    cancel(stage)
    assert saved_steps(stage)[-1] == 15
    assert "SIGUSR1" not in job_of(stage).log.read_text()
    assert steps(stage)[-1] == WAITS_AT - 1
    assert go_on_to_the_end(stage, file)[-25:] == list(range(16, 41))  # from its last periodic checkpoint


def test_a_trainer_that_is_done_when_its_hours_are_up_has_succeeded(waiting):
    start, file = waiting
    stage = start()
    file.touch()
    until(lambda: launcher_of(plan_of(stage)).poll(job_of(stage)).over)
    path = stage.attempt(1) / "exit.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "reason": "hours"}))  # asked after its last save
    assert look(stage).done
    assert not stage.cause.exists()


@pytest.mark.parametrize("launcher", ["local"], indirect=True)  # Slurm has its KillWait for that, 5 s at least
def test_one_that_says_it_saves_and_does_not_is_ended_after_its_time(launcher, job):
    launcher = replace(launcher, save_seconds=0.2)
    deaf = "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN); " + SLEEPER
    job = program(replace(job, sigusr1=True), deaf)
    launcher.submit(job)
    until(lambda: "here" in printed(job))
    launcher.cancel(job, "enough", save=True)
    assert launcher.poll(job).state == "cancelled"
    assert marked(job.name) == []


FAMILY = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; print('child', flush=True); sys.stdin.read()"],
                         stdin=subprocess.PIPE)
def save(*_):
    child.stdin.close()
    print("the child ended with", child.wait(), flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
print("parent", flush=True)
while True:
    signal.pause()
"""


def test_only_the_command_s_own_process_gets_the_signal(launcher, job):
    job = program(replace(job, sigusr1=True), FAMILY)
    launcher.submit(job)
    until(lambda: {"child", "parent"} <= set(printed(job).split()))
    launcher.cancel(job, "enough", save=True)
    assert "the child ended with 0" in job.log.read_text()
    assert launcher.poll(job).exit_code == 0


@pytest.mark.parametrize("launcher", ["local"], indirect=True)  # on Slurm torchrun starts them
def test_our_trainer_s_forked_ranks_save_together_and_go_on(launcher, job, tmp_path):
    spans = (trained.span(1, 400, 20),)
    folder = trained.order(tmp_path / "stage", *spans, checkpointing=Checkpointing(every_steps=1000, keep=2))
    command = (sys.executable, "-m", "training.train", str(folder))
    files = {"metrics": str(folder / "metrics.jsonl"), "checkpoints": str(folder / "checkpoints")}
    first = replace(job, command=command, cwd=str(Path(__file__).parent.parent), sigusr1=True, **files)
    launcher.submit(first)
    until(lambda: (folder / "metrics.jsonl").exists() and 3 in trained.steps(folder), 60)
    launcher.cancel(first, "enough", save=True)
    state = launcher.poll(first)
    assert (state.state, state.exit_code) == ("cancelled", 0)
    done = [record["step"] for record in trained.records(folder, "step")]
    (saved,) = trained.records(folder, "checkpoint")
    assert saved["saved"] and saved["step"] == done[-1] < 400
    assert manifest.verify(folder / saved["path"]) == []

    config = json.loads((folder / "config.json").read_text())
    config["spans"][0]["steps"] = done[-1] + 3  # the rest would take the time of 400 steps
    (folder / "config.json").write_text(json.dumps(config))
    second = replace(first, name=job.name + ".2", attempt=2, folder=str(tmp_path / "attempt_2"))
    launcher.submit(second)
    until(lambda: launcher.poll(second).over, 60)
    assert launcher.poll(second).state == "succeeded"
    launcher.cancel(second, "over")
    assert [r["step"] for r in trained.records(folder, "step")] == list(range(1, done[-1] + 4))


def test_its_words_reach_the_job(begin):
    assert not launch(begin()).sigusr1
    assert launch(begin("run_2", trainer=ABLE)).sigusr1
