"""What a command of a job finds around it on this machine: variables, set-up lines, the python that it means."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tasks.launchers import Job
from tasks.launchers.processes import MARK
from tasks.launchers.secret_file import read_secrets

_ROOT = Path(__file__).resolve().parents[2]


def variables(job: Job) -> dict[str, str]:
    """Return what a job's environment has beside this process's own; secrets are added only where it starts."""
    binaries = Path(job.venv or sys.prefix).expanduser() / "bin"
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        **({"VIRTUAL_ENV": str(binaries.parent)} if job.venv else {}),
        **job.variables,
    }


def prepared(job: Job, command: Sequence[str]) -> list[str]:
    """Return a command behind the job's set-up lines; the shell becomes the command, so signals reach it."""
    if not job.setup:
        return list(command)
    return ["bash", "-c", "\n".join(["set -e", *job.setup, 'exec "$@"']), "setup", *command]


def run_here(job: Job, command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a short command as the job's own would run, and wait; raise OSError, TimeoutExpired or SecretsUnusable."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "_AIRFLOW"))}
    secret = read_secrets(job.secrets_file, job.secrets)
    return subprocess.run(
        prepared(job, command),
        cwd=job.cwd,
        env={**inherited, **variables(job), **secret, MARK: job.name},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
    )
