"""The local launcher's own promises: whoever submits may die, the supervisor may die, numbers of processes return."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from launching import LAUNCHERS, SLEEPER, end_of, program
from running import until

from tasks.launchers.local import LocalLauncher
from tasks.launchers.processes import alive, identity, marked

ROOT = Path(__file__).parent.parent


@pytest.fixture
def launcher():
    """Return the one that this file is about."""
    return LAUNCHERS["local"]


SUBMIT = """
import json, sys
from tasks.launchers import Job
from tasks.launchers.local import LocalLauncher
LocalLauncher(grace_seconds=2.0).submit(Job.from_json(json.loads(sys.argv[1])))
"""


def submitting(job, before=""):
    command = [sys.executable, "-c", before + SUBMIT, json.dumps(job.to_json())]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


# Each makes the submitting process kill itself at one boundary.
DIE = "import os, signal, tasks.launchers.local as local\ndie = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
BOUNDARIES = {
    "before the order is written": DIE + "local.write_whole = die\n",
    "after the order, before the supervisor": DIE + "local._start_supervisor = die\n",
    "while the supervisor starts": (
        DIE + "import subprocess\nreal = subprocess.Popen\n"
        "class Popen(real):\n"
        "    def communicate(self, *a, **k): die()\n"
        "subprocess.Popen = Popen\n"
    ),
    "after the supervisor's answer": DIE
    + "start = local._start_supervisor\nlocal._start_supervisor = lambda *a: (start(*a), die())\n",
}


def test_deaths_with_progress_end_at_max_restarts(job, tmp_path):
    launcher = LocalLauncher(max_restarts=4, grace_seconds=2.0)
    job = program(
        job,
        """
        import os, pathlib, signal
        folder = pathlib.Path("checkpoints"); folder.mkdir(exist_ok=True)
        (folder / f"step_{len(list(folder.iterdir()))}").mkdir()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    launcher.submit(job)
    state = end_of(launcher, job)
    assert state.reason == "it died by SIGKILL and had been started again 4 times already"
    assert len(list((tmp_path / "checkpoints").iterdir())) == 5


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_submitter_killed_at_any_boundary_and_run_again_makes_one_job(launcher, job, boundary):
    job = program(job, SLEEPER)
    with submitting(job, BOUNDARIES[boundary]) as first:
        assert first.wait(30) == -signal.SIGKILL
    launcher.submit(job)
    until(lambda: job.log.exists() and "here" in job.log.read_text())
    assert launcher.poll(job).state == "running"
    assert len(marked(job.name)) == 1
    assert job.log.read_text().count("here") == 1


def test_a_job_survives_its_submitter_and_the_submitters_group(launcher, job):
    job = program(job, SLEEPER)
    command = [sys.executable, "-c", SUBMIT + "import time; print('done', flush=True); time.sleep(600)"]
    with subprocess.Popen(
        [*command, json.dumps(job.to_json())], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as first:
        assert first.stdout.readline() == "done\n"
        os.killpg(first.pid, signal.SIGKILL)
    assert launcher.poll(job).state == "running"


def test_a_killed_supervisor_takes_the_job_with_it_and_leaves_it_lost(launcher, job):
    job = program(job, SLEEPER)
    launcher.submit(job)
    until(lambda: "here" in job.log.read_text())
    supervisor = json.loads((Path(job.folder) / "supervisor.json").read_text())
    os.kill(supervisor["pid"], signal.SIGKILL)
    assert end_of(launcher, job).state == "lost"
    until(lambda: marked(job.name) == [])
    launcher.submit(job)  # lost is for the next attempt to mend, never for a second start under the same name
    assert launcher.poll(job).state == "lost"


def test_a_reused_pid_is_not_taken_for_the_supervisor(launcher, job):
    folder = Path(job.folder)
    folder.mkdir()
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        record = identity(bystander.pid) | {"start": 1, "started": 0.0, "restarts": 0}
        (folder / "supervisor.json").write_text(json.dumps(record))
        assert launcher.poll(job).state == "lost"
        launcher.cancel(job, "x")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_supervisor_is_up_in_a_blink(launcher, job):
    command = [sys.executable, "-S", "-E", "-X", "importtime", "-m", "tasks.launchers.local_supervisor", "/nowhere"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30).stderr
    for heavy in ("pandas", "numpy", "pydantic", "torch", "asyncio"):
        assert heavy not in said


def test_a_second_supervisor_of_one_folder_goes_away(launcher, job):
    folder = Path(job.folder)
    folder.mkdir()
    with (folder / "supervisor.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "tasks.launchers.local_supervisor", str(folder)]
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert said.stdout == "already running"


def test_identity_tells_a_process_from_the_next_of_its_number():
    here = identity(os.getpid())
    assert alive(here)
    assert not alive({**here, "start": here["start"] - 1})
    assert not alive(None)
    assert identity(2**22 + 1) is None


def test_a_command_before_the_job_that_hangs_holds_it_up_no_longer_than_its_own_hours(job, launcher):
    before = (("python", "-c", SLEEPER),)
    launcher.submit(replace(program(job, "print('the job')"), before=before, before_hours=1.0 / 3600))
    assert end_of(launcher, job).state == "succeeded"
    log = job.log.read_text()
    assert "took longer than 0.000277778 h; the job goes on without it" in log and log.count("the job\n") == 1
