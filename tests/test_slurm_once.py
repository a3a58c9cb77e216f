"""A job of Slurm's is submitted once: whoever submits is killed at any boundary, its controller freezes or dies."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from launching import LAUNCHERS, SLEEPER, printed, program
from running import KILL_AT, ROOT, until

from tasks.errors import LaunchFailed
from tasks.launchers.slurm import client
from tasks.launchers.slurm import submit as submitting

SUBMIT = """
import json, sys
from tasks.launchers import Job
from tasks.launchers.slurm import SlurmLauncher
print(SlurmLauncher(start="command", settle_seconds=1.0).submit(Job.from_json(json.loads(sys.argv[1]))), flush=True)
"""
PATIENT = replace(LAUNCHERS["slurm"], settle_seconds=6.0)  # longer than MessageTimeout, as the setting asks


@pytest.fixture
def launcher(slurm):
    """Return the one that this file is about."""
    return LAUNCHERS["slurm"]


def submitter(job, before=""):
    return subprocess.Popen(
        [sys.executable, "-c", before + SUBMIT, json.dumps(job.to_json())],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


# Each makes the submitting process the last thing that it does.
CLIENT = KILL_AT + "from tasks.launchers.slurm import client, submit, script\n"
BOUNDARIES = {
    "after it has looked the name up": CLIENT + "after(submit, 'look_up', 1)",
    "after node.sh": CLIENT + "after(submit, 'write_whole', 1)",
    "after batch.sh": CLIENT + "after(submit, 'write_whole', 2)",
    "after submitting.json": CLIENT + "after(submit, 'write_whole', 3)",
    "while sbatch runs": CLIENT
    + """
import subprocess
class Popen(subprocess.Popen):
    def communicate(self, *arguments, **named):
        if self.args[0] == "sbatch":
            self.stdin.write(arguments[0] if arguments else named["input"])
            self.stdin.close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().communicate(*arguments, **named)
subprocess.Popen = Popen
""",
    "after sbatch's answer": CLIENT
    + """
real = client.Client.run
def run(self, *command, **named):
    answer = real(self, *command, **named)
    if command[0] == "sbatch":
        os.kill(os.getpid(), signal.SIGKILL)
    return answer
client.Client.run = run
""",
    "after slurm.json": CLIENT + "after(submit, 'write_whole', 4)",
}


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_submitter_killed_at_any_boundary_and_run_again_makes_one_job(slurm, launcher, job, boundary):
    job = program(job, SLEEPER)
    with submitter(job, BOUNDARIES[boundary] + "\n") as first:
        assert first.wait(30) == -signal.SIGKILL, first.stderr.read()
    number = launcher.submit(job)
    until(lambda: "here" in printed(job))
    assert slurm.jobs(job.name) == [number]
    assert printed(job).count("here") == 1
    assert launcher.submit(job) == number


def test_what_sbatch_took_although_its_controller_did_not_answer_is_found_and_not_asked_for_again(
    slurm, launcher, job, monkeypatch
):
    real, unheard = client.Client.run, []

    def run(self, *command, **named):
        if command[0] != "sbatch":
            return real(self, *command, **named)
        with slurm.frozen():  # it takes the connection, and answers once it goes on
            try:
                return real(self, *command, **named)
            except client.Silent as error:
                unheard.append(str(error))
                raise

    monkeypatch.setattr(client.Client, "run", run)
    job = program(job, SLEEPER)
    number = PATIENT.submit(job)
    assert len(unheard) == 1 and "Socket timed out" in unheard[0]
    until(lambda: "here" in printed(job))
    assert slurm.jobs(job.name) == [number]
    assert json.loads((Path(job.folder) / "slurm.json").read_text())["how"].startswith(
        "found by its name after an error"
    )


def test_of_two_that_came_through_all_the_same_one_runs(slurm, launcher, job):
    job = program(job, SLEEPER)
    number = launcher.submit(job)
    until(lambda: "here" in printed(job))
    text = (Path(job.folder) / "batch.sh").read_text()
    extra = sbatch(without_dependency(text))
    until(lambda: f"job {extra} is one too many: {number} of the same name is the job" in printed(job))
    assert printed(job).count("here") == 1

    waiting = sbatch(text)
    (Path(job.folder) / "slurm.json").unlink()  # as if it had been killed before it wrote down what it has
    assert launcher.submit(job) == number  # -d singleton lets the other one wait, and this sees it
    until(lambda: slurm.ask("squeue", "-h", "-t", "all", "-j", waiting, "-o", "%T").strip() == "CANCELLED")
    assert launcher.poll(job).state == "running"


def sbatch(text):
    """Submit a script past our own launcher; return the job's number."""
    done = subprocess.run(["sbatch", "--parsable"], input=text, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def without_dependency(text):
    """Return the batch script without what makes a second job of the name wait."""
    assert "#SBATCH --dependency=singleton\n" in text
    return text.replace("#SBATCH --dependency=singleton\n", "")


def test_a_refusal_is_slurm_s_own_words_and_leaves_the_name_free(slurm, launcher, job):
    job = program(job, "print('here')")
    refused = replace(launcher, partition="nowhere")
    with pytest.raises(LaunchFailed, match=r"Slurm does not take it: sbatch: .*invalid partition"):
        refused.submit(job)
    assert refused.poll(job).state == "unknown"
    with pytest.raises(LaunchFailed, match="Requested node configuration is not available"):
        launcher.submit(replace(job, gpus_per_node=9))  # leaves a failed row of that name in the queue
    number = launcher.submit(job)
    until(lambda: launcher.poll(job).state == "succeeded")
    assert slurm.jobs(job.name) == [number]


def test_absence_is_believed_at_once_only_where_no_sbatch_may_be_on_its_way(launcher, job):
    began = time.monotonic()
    assert submitting.look_up(launcher, job, sure=True) is None
    assert time.monotonic() - began < launcher.settle_seconds
    began = time.monotonic()
    assert submitting.look_up(launcher, job, sure=False) is None
    assert time.monotonic() - began >= launcher.settle_seconds
