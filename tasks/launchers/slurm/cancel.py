"""Ending a job: by number and by name, after time to save where that is wanted, until nothing of it is left."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from tasks.errors import LaunchFailed
from tasks.launchers import Job
from tasks.launchers.exit_record import CANCEL, EXIT, read, write_whole
from tasks.launchers.slurm import squeue
from tasks.launchers.slurm.client import Client, Refused, Silent
from tasks.launchers.slurm.site import Site
from tasks.launchers.slurm.state import RUN
from tasks.launchers.slurm.submit import locked

_LOOKS_APART, _LONGEST_END = 0.1, 120.0  # Slurm kills KillWait (30 s by default) after it has asked


def cancel(site: Site, job: Job, because: str, *, save: bool = False) -> None:
    """End the job and write down that it was cancelled; raise LaunchFailed where Slurm does not answer.

    What was asked stays asked: a script that starts later finds ``cancel.json`` and ends.
    """
    folder = Path(job.folder)
    if not folder.exists():
        return
    with locked(folder):
        if not (folder / EXIT).exists():
            write_whole(folder / CANCEL, {"because": because, "save": save, "time": time.time()})
        try:
            _end(site, job, saving=save and job.sigusr1)
        except Silent as error:
            raise LaunchFailed(
                f"job {job.name} is not cancelled yet: {error}. It is asked for in {CANCEL}; cancel again, or by hand: "
                f"scancel --name={job.name}"
            ) from error
        if not (folder / EXIT).exists():
            run = read(folder / RUN) or {}
            record: dict[str, Any] = {"reason": "cancelled", "code": None, "signal": None, "detail": because}
            record |= {"restarts": run.get("restarts", 0), "started": run.get("started"), "time": time.time()}
            write_whole(folder / EXIT, record)


def end(site: Site, name: str) -> str:
    """End every job of that name; say which."""
    try:
        live = [row for row in squeue.named(site.client, name) if row.live]
        for row in live:
            site.client.run("scancel", row.id)
    except (Refused, Silent) as error:
        raise LaunchFailed(f"job {name} could not be cancelled: {error}") from error
    return f"cancelled {', '.join(row.id for row in live)}" if live else "it was over"


def _end(site: Site, job: Job, *, saving: bool) -> None:
    client = site.client
    live = _live(client, job)
    if saving and any(row.state == "RUNNING" for row in live):
        for row in live:
            with contextlib.suppress(Refused):
                client.run("scancel", "--batch", "--signal=USR1", row.id)
        live = _wait(client, job, site.save_seconds + site.grace_seconds)
    for row in live:
        with contextlib.suppress(Refused):  # it ended in this moment
            client.run("scancel", row.id)
    if live and (left := _wait(client, job, _LONGEST_END)):
        states = ", ".join(f"{row.id} is {row.state} on {row.nodes}" for row in left)
        raise LaunchFailed(f"job {job.name} was cancelled, and Slurm still cleans up after it: {states}; look again")


def _live(client: Client, job: Job) -> list[squeue.Row]:
    return [row for row in squeue.named(client, job.name) if row.live]


def _wait(client: Client, job: Job, seconds: float) -> list[squeue.Row]:
    """Wait until no job of the name waits or runs; return those that still do after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        live = _live(client, job)
        if not live or time.monotonic() >= deadline:
            return live
        time.sleep(_LOOKS_APART)
