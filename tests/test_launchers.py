"""The contract of every launcher, on real processes; a new launcher is one more row in LAUNCHERS."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.errors import LaunchFailed
from tasks.launchers import Job
from tasks.launchers.local import LocalLauncher
from tasks.launchers.processes import alive, identity, marked

LAUNCHERS = {"local": LocalLauncher(grace_seconds=2.0)}
ROOT = Path(__file__).parent.parent


@pytest.fixture(params=LAUNCHERS)
def launcher(request):
    return LAUNCHERS[request.param]


@pytest.fixture
def job(tmp_path, launcher):
    """A job whose command is set by each test; ended afterwards, whatever happened."""
    made = Job(
        name=f"test.{tmp_path.name}.1", attempt=1, command=("true",), nodes=1, gpus_per_node=1, hours=1.0,
        folder=str(tmp_path / "attempt_1"), metrics=str(tmp_path / "metrics.jsonl"),
        checkpoints=str(tmp_path / "checkpoints"), cwd=str(tmp_path),
    )  # fmt: skip
    yield made
    launcher.cancel(made, "the test is over")
    assert marked(made.name) == []


def program(job, text, *arguments):
    return replace(job, command=("python", "-c", textwrap.dedent(text), *arguments))


def until(condition, seconds=20.0):
    """Wait for another process's doing; its files give no event that we could await."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def end_of(launcher, job):
    until(lambda: launcher.poll(job).over)
    return launcher.poll(job)


SLEEPER = "import time; print('here', flush=True); time.sleep(600)"


def test_a_job_that_exits_0_succeeds(launcher, job):
    job = program(job, "print('hello')")
    assert launcher.submit(job) == job.name
    state = end_of(launcher, job)
    assert (state.state, state.exit_code, state.restarts) == ("succeeded", 0, 0)
    assert "hello" in job.log.read_text()


def test_a_nonzero_exit_is_the_programs_fault_and_is_not_tried_again(launcher, job):
    job = program(job, "print('once'); raise SystemExit(3)")
    launcher.submit(job)
    state = end_of(launcher, job)
    assert (state.state, state.exit_code, state.restarts) == ("failed", 3, 0)
    assert state.reason == "the program ended with exit code 3"
    assert job.log.read_text().count("once") == 1


def test_a_job_never_submitted_is_unknown_and_its_cancel_is_quiet(launcher, job):
    assert launcher.poll(job).state == "unknown"
    launcher.cancel(job, "no reason")
    assert launcher.poll(job).state == "unknown"


def test_a_death_by_signal_is_started_again_where_it_left_off(launcher, job, tmp_path):
    job = program(
        job,
        """
        import json, os, signal, pathlib
        path = pathlib.Path("metrics.jsonl")
        step = len(path.read_text().splitlines()) if path.exists() else 0
        with path.open("a") as file:
            file.write(json.dumps({"step": step + 1}) + "\\n" + '{"torn')
        if step < 4:
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    launcher.submit(job)
    state = end_of(launcher, job)
    assert (state.state, state.restarts) == ("succeeded", 4)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines[:5]] == [1, 2, 3, 4, 5]  # no torn line before the last


def test_deaths_without_progress_end_the_job_and_say_so(launcher, job):
    job = program(job, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    launcher.submit(job)
    state = end_of(launcher, job)
    assert (state.state, state.restarts) == ("failed", 3)
    assert state.reason == "it died by SIGSEGV after 3 restarts in a row without a new step or checkpoint"


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


def test_a_command_that_does_not_exist_is_named(launcher, job):
    job = replace(job, command=("no_such_program",))
    launcher.submit(job)
    state = end_of(launcher, job)
    assert state.state == "failed"
    assert "no_such_program" in state.reason


def test_hours_up_ends_the_job(launcher, job):
    job = program(replace(job, hours=0.5 / 3600), SLEEPER)
    launcher.submit(job)
    state = end_of(launcher, job)
    assert (state.state, state.reason) == ("failed", "its hours were up")
    assert marked(job.name) == []


def test_cancel_ends_all_that_the_job_started(launcher, job):
    job = program(
        job,
        """
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a stubborn one, with a child in a session of its own
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        print("here", flush=True)
        time.sleep(600)
        """,
    )
    launcher.submit(job)
    until(lambda: job.log.exists() and "here" in job.log.read_text())
    assert len(marked(job.name)) == 2
    launcher.cancel(job, "enough")
    assert marked(job.name) == []
    assert launcher.poll(job).state == "cancelled"
    launcher.cancel(job, "again")
    assert launcher.submit(job) == job.name  # a cancelled job is not started again by name
    assert launcher.poll(job).state == "cancelled"


def test_submits_at_once_start_one_job(launcher, job, tmp_path):
    job = program(job, "print('here', flush=True); import time; time.sleep(600)")
    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(launcher.submit, [job] * 6)) == {job.name}
    until(lambda: "here" in job.log.read_text())
    assert len(marked(job.name)) == 1
    assert job.log.read_text().count("here") == 1


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


def test_variables_setup_and_secrets_reach_the_job_and_secrets_no_file(launcher, job, tmp_path):
    secrets = tmp_path / "secrets"
    secrets.write_text("# comment\nexport TOKEN='s3cret-value'\nOTHER=not asked for\n")
    secrets.chmod(0o600)
    job = replace(job, variables={"COLOUR": "blue"}, setup=("export FROM_SETUP=yes",))
    job = program(
        replace(job, secrets=("TOKEN",), secrets_file=str(secrets)),
        """
        import os
        print(os.environ["COLOUR"], os.environ["FROM_SETUP"], len(os.environ["TOKEN"]), os.environ.get("OTHER"))
        """,
    )
    launcher.submit(job)
    assert end_of(launcher, job).state == "succeeded"
    assert "blue yes 12 None" in job.log.read_text()
    for file in Path(job.folder).iterdir():
        assert "s3cret-value" not in file.read_text()


@pytest.mark.parametrize(
    ("mode", "text", "complaint"),
    [(0o644, "TOKEN=x", "has mode 0644, so others may read it; `chmod 600"), (0o600, "OTHER=x", "has no TOKEN")],
)
def test_unusable_secrets_refuse_the_job_before_it_starts(launcher, job, tmp_path, mode, text, complaint):
    secrets = tmp_path / "secrets"
    secrets.write_text(text)
    secrets.chmod(mode)
    with pytest.raises(LaunchFailed, match=complaint):
        launcher.submit(replace(job, secrets=("TOKEN",), secrets_file=str(secrets)))
    assert launcher.poll(job).state == "unknown"


def test_airflows_own_variables_do_not_reach_the_job(launcher, job, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "key")
    job = program(job, "import os; print(sorted(k for k in os.environ if 'AIRFLOW' in k))")
    launcher.submit(job)
    end_of(launcher, job)
    assert "[]" in job.log.read_text()


def test_a_venv_s_python_is_the_command_s(launcher, job, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    job = program(replace(job, venv=str(tmp_path / "venv")), "import sys; print(sys.prefix)")
    launcher.submit(job)
    end_of(launcher, job)
    assert str(tmp_path / "venv") in job.log.read_text()


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


def test_a_running_jobs_look_is_cheap(launcher, job):
    job = program(job, SLEEPER)
    launcher.submit(job)
    before = threading.active_count()
    began = time.process_time()
    for _ in range(100):
        assert launcher.poll(job).state == "running"
    assert time.process_time() - began < 1.0
    assert threading.active_count() == before
