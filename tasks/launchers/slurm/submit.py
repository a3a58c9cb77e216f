"""One job by its name, whatever is killed when: looked up before each sbatch and after every one that gave no number.

Names bear deployment, run, stage and attempt, so equal names are one job. What is left is the time in which an sbatch
that nobody waits for any more may still be taken: `submitting.json` says that there was one, and then a name must be
absent from the queue for ``settle_seconds`` before another sbatch. Should two come through all the same, `-d singleton`
lets one wait for the other, the batch script of the later finds another owner in the folder and ends, and it is
cancelled here as soon as it is seen.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.errors import LaunchFailed
from tasks.launchers import Job
from tasks.launchers.exit_record import CANCEL, EXIT, read, write_whole
from tasks.launchers.secret_file import SecretsUnusable, read_secrets
from tasks.launchers.slurm import script, squeue
from tasks.launchers.slurm.client import Client, Refused, Silent
from tasks.launchers.slurm.site import Site
from tasks.launchers.slurm.squeue import Row
from tasks.launchers.slurm.state import SUBMITTED

SUBMITTING, LOOKS_APART = "submitting.json", 0.5


def submit(site: Site, job: Job) -> str:
    """Submit the job unless it is there, or was; return its number. Raises LaunchFailed."""
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        read_secrets(job.secrets_file, job.secrets)
    except SecretsUnusable as error:
        raise LaunchFailed(f"job {job.name}: {error}") from error
    with locked(folder):
        known = read(folder / SUBMITTED)
        if known is not None:
            return str(known["id"])
        if (folder / EXIT).exists() or (folder / CANCEL).exists():
            return job.name
        try:
            return _submit(site, job, folder)
        except Silent as error:
            raise LaunchFailed(
                f"job {job.name}: whether Slurm took it is not known ({error}); the next launch looks for it by name"
            ) from error


def _submit(site: Site, job: Job, folder: Path) -> str:
    client = site.client
    there = look_up(site, job, sure=read(folder / SUBMITTING) is None)
    if there is not None:
        return _note(folder, there.id, "found by its name")
    write_whole(folder / script.NODE_SCRIPT, script.node_script(site, job))
    text = script.batch_script(site, job)
    write_whole(folder / script.BATCH_SCRIPT, text)
    write_whole(folder / SUBMITTING, {"host": socket.gethostname(), "pid": os.getpid(), "time": time.time()})
    try:
        said = client.run("sbatch", "--parsable", text=text)
    except Refused as error:
        there = look_up(site, job, sure=True)
        if there is None:
            (folder / SUBMITTING).unlink()
            raise LaunchFailed(f"job {job.name}: Slurm does not take it: {error}") from error
        return _note(folder, there.id, f"found by its name after an error: {error}")
    except Silent as error:
        there = look_up(site, job, sure=False)
        if there is None:
            raise LaunchFailed(f"job {job.name}: Slurm did not take it: {error}") from error
        return _note(folder, there.id, f"found by its name after an error: {error}")
    return _note(folder, said.strip().partition(";")[0], "sbatch")  # `ID;CLUSTER` where there are several


def look_up(site: Site, job: Job, *, sure: bool) -> Row | None:
    """Return the job of that name; not ``sure`` where one may still be on its way: then absence must last.

    Raises Silent. Any job of the name beyond the first is cancelled.
    """
    client, deadline = site.client, time.monotonic() + (0.0 if sure else site.settle_seconds)
    while True:
        rows = [row for row in squeue.named(client, job.name) or squeue.remembered(client, job.name) if not row.ghost]
        for extra in rows[1:]:
            if extra.live:
                _end(client, extra)
        if rows or time.monotonic() >= deadline:
            return rows[0] if rows else None
        time.sleep(LOOKS_APART)


def _end(client: Client, row: Row) -> None:
    try:
        client.run("scancel", row.id)
    except Refused:
        return  # it was over before


def _note(folder: Path, job_id: str, how: str) -> str:
    write_whole(folder / SUBMITTED, {"id": job_id, "how": how, "time": time.time()})
    return job_id


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the kernel lets go of it when this process dies."""
    with (folder / "submit.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
