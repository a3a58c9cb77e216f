"""The contract of every launcher, on real processes; a new launcher is one more row in launching.LAUNCHERS."""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from launching import SLEEPER, end_of, printed, program, programs
from running import until

from tasks.errors import LaunchFailed
from tasks.launchers.processes import marked


def test_a_job_that_exits_0_succeeds(launcher, job):
    job = program(job, "print('hello')")
    assert launcher.submit(job) == launcher.submit(job)
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


def test_folders_may_have_odd_names_and_a_set_up_line_that_fails_is_the_programs_fault(launcher, job, tmp_path):
    odd = tmp_path / 'it\'s an "odd" $one'
    odd.mkdir()
    files = {
        "folder": str(odd / "attempt_1"),
        "metrics": str(odd / "m"),
        "checkpoints": str(odd / "c"),
        "cwd": str(odd),
    }
    job = program(replace(job, **files, setup=("test -z here || exit 7",)), "print('not reached')")
    launcher.submit(job)
    state = end_of(launcher, job)
    assert (state.state, state.exit_code, state.restarts) == ("failed", 7, 0), printed(job)
    assert "not reached" not in printed(job)


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
    until(lambda: "here" in printed(job))
    assert len(programs(job)) == 2
    launcher.cancel(job, "enough")
    assert marked(job.name) == []
    assert launcher.poll(job).state == "cancelled"
    launcher.cancel(job, "again")
    launcher.submit(job)  # a cancelled job is not started again by name
    assert launcher.poll(job).state == "cancelled"


def test_submits_at_once_start_one_job(launcher, job, tmp_path):
    job = program(job, "print('here', flush=True); import time; time.sleep(600)")
    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(launcher.submit, [job] * 6))) == 1
    until(lambda: "here" in printed(job))
    assert len(programs(job)) == 1
    assert job.log.read_text().count("here") == 1


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
    for file in Path(job.folder).rglob("*"):
        assert file.is_dir() or "s3cret-value" not in file.read_text()


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


def test_a_running_jobs_look_is_cheap(launcher, job):
    job = program(job, SLEEPER)
    launcher.submit(job)
    until(lambda: "here" in printed(job))
    before = threading.active_count()
    began = time.process_time()
    for _ in range(100):
        assert launcher.poll(job).state == "running"
    assert time.process_time() - began < 1.0
    assert threading.active_count() == before
