"""Jobs on this machine, each beside a supervisor process of its own; the attempt's folder says how each is."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tasks.errors import LaunchFailed
from tasks.launchers import Job, JobState, State
from tasks.launchers.exit_record import CANCEL, EXIT, ended, read, write_whole
from tasks.launchers.local_supervisor import ORDER, SUPERVISOR
from tasks.launchers.processes import alive, end, end_job
from tasks.launchers.secret_file import SecretsUnusable, read_secrets
from tasks.launchers.surroundings import prepared, variables

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class LocalLauncher:
    """Runs jobs on this machine; the fields are the ``launcher:`` block of a cluster file."""

    kind: Literal["local"] = "local"
    restarts: int = 3  # in a row after deaths by signal, without a new step or checkpoint between them
    max_restarts: int = 100  # in all
    grace_seconds: float = 10.0  # between SIGTERM and SIGKILL
    save_seconds: float = 60.0  # for a trainer that answers SIGUSR1, before SIGTERM

    def submit(self, job: Job) -> str:
        """Start the job's supervisor unless there is or was one; two at once start one."""
        folder = Path(job.folder)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            read_secrets(job.secrets_file, job.secrets)
        except SecretsUnusable as error:
            raise LaunchFailed(f"job {job.name}: {error}") from error
        with _locked(folder / "submit.lock"):
            if not any((folder / name).exists() for name in (SUPERVISOR, EXIT, CANCEL)):
                write_whole(folder / ORDER, self._order(job))
                _start_supervisor(job, folder)
        return job.name

    def poll(self, job: Job) -> JobState:
        """Read how the job is from its folder and the process table."""
        folder = Path(job.folder)
        found = ended(job)
        if found is not None:
            return found
        supervisor = read(folder / SUPERVISOR)
        if supervisor is None:
            if (folder / CANCEL).exists():
                return JobState("cancelled", "cancelled before it started", log=str(job.log))
            state: State = "queued" if (folder / ORDER).exists() else "unknown"
            return JobState(state, "not started yet", log=str(job.log))
        started, restarts = supervisor["started"], supervisor["restarts"]
        if alive(supervisor):
            return JobState("running", "running", None, restarts, started, str(job.log))
        # It may have ended between our two looks; only then is its last word there.
        lost = JobState("lost", "its supervisor ended without a word", None, restarts, started, str(job.log))
        return ended(job) or lost

    def cancel(self, job: Job, because: str, *, save: bool = False) -> None:
        """End the supervisor and everything the job started; afterwards ``poll`` says how it ended."""
        folder = Path(job.folder)
        if not folder.exists():
            return
        with _locked(folder / "submit.lock"):
            if not (folder / EXIT).exists():
                write_whole(folder / CANCEL, {"because": because, "save": save, "time": time.time()})
            supervisor = read(folder / SUPERVISOR)
            if supervisor is not None:
                saving = self.save_seconds if save and job.sigusr1 else 0.0
                # The supervisor ends the job first, and writes exit.json.
                end([supervisor], saving + self.grace_seconds + 10)
            end_job(job.name, self.grace_seconds)
            if not (folder / EXIT).exists():
                record = {"reason": "cancelled", "code": None, "signal": None, "detail": because, "restarts": 0}
                write_whole(folder / EXIT, {**record, "started": None, "time": time.time()})

    def _order(self, job: Job) -> dict[str, Any]:
        """Return all that the supervisor needs; of secrets only names and file."""
        before = [prepared(job, command) for command in job.before]
        commands = {"command": prepared(job, job.command), "before": before}
        limits = {"restarts": self.restarts, "max_restarts": self.max_restarts}
        seconds = {"grace_seconds": self.grace_seconds, "save_seconds": self.save_seconds}
        return {**job.to_json(), **commands, "variables": variables(job), **limits, **seconds}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the file's lock; the kernel lets go of it when this process dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start_supervisor(job: Job, folder: Path) -> None:
    """Start it and hear its answer: it says one line once its identity is written down, and then lives on alone."""
    command = [sys.executable, "-S", "-E", "-m", "tasks.launchers.local_supervisor", str(folder)]
    try:  # the process that this waits for forks and ends at once
        started = subprocess.run(
            command,
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            start_new_session=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchFailed(f"job {job.name}: its supervisor did not start: {error}") from error
    if started.stdout not in ("started", "already running", "already ran"):
        said = (started.stderr or started.stdout).strip()[-500:]
        raise LaunchFailed(f"job {job.name}: its supervisor did not start (exit {started.returncode}): {said}")
