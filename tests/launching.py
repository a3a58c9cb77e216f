"""What tests of launchers share: the launchers, a job to fill, and waiting for its end."""

import os
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from running import until

from tasks.launchers import Job
from tasks.launchers.local import LocalLauncher
from tasks.launchers.processes import marked
from tasks.launchers.slurm import SlurmLauncher

LAUNCHERS = {
    "local": LocalLauncher(grace_seconds=2.0),
    "slurm": SlurmLauncher(start="command", grace_seconds=2.0, save_seconds=10.0, settle_seconds=1.0),
}
AROUND = {"bash", "srun", "sleep", "slurm_script", "scontrol", "scancel"}  # what stands beside a program on Slurm
SLEEPER = "import time; print('here', flush=True); time.sleep(600)"


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def launcher(request):
    """Return each launcher in turn: what is asked of one is asked of all."""
    if request.param == "slurm":
        request.getfixturevalue("slurm")
    return LAUNCHERS[request.param]


@pytest.fixture
def job(tmp_path, launcher):
    """Return a job whose command is set by each test; end it afterwards, whatever happened."""
    made = Job(
        name=f"test.{os.getpid()}.{tmp_path.name}.1", attempt=1, command=("true",), nodes=1, gpus_per_node=1, hours=1.0,
        folder=str(tmp_path / "attempt_1"), metrics=str(tmp_path / "metrics.jsonl"),
        checkpoints=str(tmp_path / "checkpoints"), cwd=str(tmp_path),
    )  # fmt: skip
    yield made
    launcher.cancel(made, "the test is over")
    if isinstance(launcher, SlurmLauncher):  # the test cluster counts by parent: an orphan may still be dying unseen
        until(lambda: marked(made.name) == [], 5.0)
    assert marked(made.name) == []


def program(job, text, *arguments):
    """Return the job with a Python program for its command."""
    return replace(job, command=("python", "-c", textwrap.dedent(text), *arguments))


def printed(job):
    """Return what the job has printed so far."""
    return job.log.read_text() if job.log.exists() else ""


def programs(job):
    """Return the processes that run the job's program; not those that look after it."""
    found = []
    for process in marked(job.name):
        try:
            if Path(f"/proc/{process['pid']}/comm").read_text().strip() not in AROUND:
                found.append(process)
        except FileNotFoundError:
            continue  # just gone
    return found


def end_of(launcher, job):
    """Wait until the job is over; return how it is."""
    until(lambda: launcher.poll(job).over)
    return launcher.poll(job)
