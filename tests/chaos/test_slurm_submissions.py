"""200 submissions to a real Slurm, each killed at a random moment while its controller freezes and dies: one job each.

``make chaos`` runs it. The seed names every moment. What Slurm itself loses with its controller (a start that it had
not saved: the job comes back held) is told as lost, and is the one reason for a second attempt.
"""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from launching import LAUNCHERS, SLEEPER, printed, program
from running import ROOT, until

from tasks.errors import LaunchFailed
from tasks.launchers import Job

ROUNDS, AT_ONCE = 25, 8
LAUNCHER = replace(LAUNCHERS["slurm"], settle_seconds=6.0)  # longer than MessageTimeout, as the setting asks
SUBMIT = """
import json, sys
from tasks.launchers import Job
from tasks.launchers.slurm import SlurmLauncher
print("ready", flush=True)
SlurmLauncher(start="command", settle_seconds=6.0).submit(Job.from_json(json.loads(sys.argv[1])))
"""


def fresh(folder, name, attempt=1):
    where = folder / name
    where.mkdir(exist_ok=True)
    job = Job(
        name=f"chaos.{folder.name}.{name}.{attempt}", attempt=attempt, command=("true",), nodes=1, gpus_per_node=1,
        hours=1.0, folder=str(where / f"attempt_{attempt}"), metrics=str(where / "m"), checkpoints=str(where / "c"),
        cwd=str(where),
    )  # fmt: skip
    return program(job, "import time; print('here', flush=True); time.sleep(1)")


def submit_and_die(job, seconds):
    """Submit in a process of its own, and kill it so long after it began; return whether it was killed."""
    command = [sys.executable, "-c", SUBMIT, json.dumps(job.to_json())]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        child.stdout.readline()
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.kill()
        return child.wait() == -signal.SIGKILL


def disturb(cluster, chosen, ended):
    """Freeze the controller, or kill it and start it again, at random moments until the round is over."""
    while not ended.wait(chosen.uniform(1.0, 4.0)):
        if chosen.random() < 0.7:
            with cluster.frozen():
                time.sleep(chosen.uniform(0.1, 7.0))
        else:
            cluster.do("kill-controller")
            time.sleep(chosen.uniform(0.1, 3.0))
            cluster.do("start-controller")


def settled(job):
    """Submit until there is an answer, and wait for the end; return how it is."""

    def submitted():
        try:
            return LAUNCHER.submit(job)
        except LaunchFailed:
            return None

    until(submitted, 120)
    until(lambda: LAUNCHER.poll(job).over, 180)
    return LAUNCHER.poll(job)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1])
def test_each_is_one_job_whatever_is_killed_when(slurm, tmp_path, seed):
    chosen, counts = random.Random(seed), {"submissions": 0, "killed": 0, "lost with the controller": 0}
    for number in range(ROUNDS):
        ended = threading.Event()
        troubles = threading.Thread(target=disturb, args=(slurm, random.Random(f"{seed} {number}"), ended))
        troubles.start()
        try:
            jobs = [fresh(tmp_path, f"{number}_{i}") for i in range(AT_ONCE)]
            moments = [chosen.choice([0.02, 0.05, 0.1, 0.3, 1.0]) for _ in jobs]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                killed = list(pool.map(submit_and_die, jobs, moments))
        finally:
            ended.set()
            troubles.join()
        for job in jobs:
            state = settled(job)
            counts["submissions"] += 1
            if state.state == "lost":
                counts["lost with the controller"] += 1
                assert printed(job).count("here") <= 1, (number, job.name, state)
                LAUNCHER.cancel(job, "lost")
                job = fresh(tmp_path, Path(job.cwd).name, attempt=2)
                state = settled(job)
            assert state.state == "succeeded", (number, job.name, state, printed(job))
            assert printed(job).count("here") == 1, (number, job.name)
            assert printed(job).count("one too many") == 0 or len(slurm.jobs(job.name)) > 1
        counts["killed"] += sum(killed)
    print(f"\nseed {seed}: {counts}; none ran twice, none not at all")
    assert counts["killed"] > counts["submissions"] / 4


@pytest.mark.parametrize("launcher", ["slurm"], indirect=True)
def test_a_controller_that_is_away_is_no_answer(slurm, launcher, job):
    job = program(job, SLEEPER)
    number = launcher.submit(job)
    until(lambda: "here" in printed(job))
    slurm.do("stop-controller")
    assert launcher.poll(job).state == "unknown"
    with pytest.raises(LaunchFailed, match=r"is not cancelled yet: .*asked for in cancel.json.*scancel --name="):
        launcher.cancel(job, "while nobody listens")
    slurm.do("start-controller")
    until(lambda: launcher.poll(job).state == "running")
    assert launcher.submit(job) == number and slurm.jobs(job.name) == [number]
