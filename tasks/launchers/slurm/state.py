"""From Slurm's words, the exit record and what the batch script remembers to how a job is."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from tasks.launchers import Job, JobState
from tasks.launchers.exit_record import CANCEL, ended, read
from tasks.launchers.slurm import nodes as node_memory
from tasks.launchers.slurm import squeue
from tasks.launchers.slurm.client import Client, Refused, Silent
from tasks.launchers.slurm.site import Site
from tasks.launchers.slurm.squeue import Row

SUBMITTED, RUN, RECORD_SECONDS = "slurm.json", "run.json", 90.0  # how late a shared folder may show a last word

_HELD = ("launch_failed_requeued_held", "JobHeldAdmin", "job_requeued_in_held_state")


def look(site: Site, job: Job) -> JobState:
    """Say how the job is: by its exit record, else by Slurm, else by what is left of it; never raises for silence."""
    found = ended(job)
    if found is not None:
        return found
    folder = Path(job.folder)
    submitted = read(folder / SUBMITTED)
    client = site.client
    try:
        row = _row(client, job, submitted)
    except Silent as error:
        return JobState("unknown", f"Slurm gives no answer: {error}", log=str(job.log))
    found = ended(job)  # it may have ended between our two looks
    if found is not None:
        return found
    if row is None:
        return _forgotten(job, submitted)
    return _shown(site, client, job, row, read(folder / RUN) or {})


def _row(client: Client, job: Job, submitted: dict[str, Any] | None) -> Row | None:
    if submitted is not None:
        row = squeue.numbered(client, submitted["id"])
        if row is not None and row.name == job.name:  # numbers begin anew where a controller lost its state
            return row
    elif not Path(job.folder).exists():
        return None
    return squeue.chosen(squeue.named(client, job.name)) or squeue.chosen(squeue.remembered(client, job.name)[-1:])


def _forgotten(job: Job, submitted: dict[str, Any] | None) -> JobState:
    folder, log = Path(job.folder), str(job.log)
    if (folder / CANCEL).exists():
        return JobState("cancelled", "cancelled", log=log)
    if submitted is None:
        return JobState("unknown", "not submitted yet", log=log)
    if (folder / RUN).exists():
        return JobState("lost", f"Slurm has forgotten job {submitted['id']}, and it left no last word", log=log)
    return JobState("lost", f"Slurm has forgotten job {submitted['id']}, and it never started", log=log)


def _shown(site: Site, client: Client, job: Job, row: Row, run: dict[str, Any]) -> JobState:
    """Return how a job is that Slurm shows and that has written no last word."""
    restarts = int(run.get("restarts", 0)) + int(run.get("requeues", 0))
    ran = run.get("used", 0) + (time.time() - run["begun"] if run.get("begun") else 0) if run else None
    about: dict[str, Any] = {"restarts": restarts, "started": run.get("started"), "log": str(job.log)}
    if row.reason in _HELD:
        said = f"Slurm could not start job {row.id} and holds it ({row.reason})"
        node_memory.remember(site, node_memory.unfit(client, row.nodes or run.get("nodes", "")), job.name)
        return JobState("lost", said, **about)
    if row.state in squeue.WAITING:
        if run:
            _leave_out(site, client, row, run.get("nodes", ""), job.name)
        expects = _expects(row, run, restarts)
        about |= {"queued_since": row.submitted, "ran_seconds": ran, "expects": expects}
        return JobState("queued", f"pending: {expects}", **about)
    if row.state in squeue.RUNNING | squeue.ENDING:
        return JobState("running", row.state.lower(), ran_seconds=ran, **about)
    return _over(site, client, job, row, run, about)


def _expects(row: Row, run: dict[str, Any], restarts: int) -> str:
    """Return why a job waits, in Slurm's word, and when Slurm expects to start it."""
    again = f"requeued (restart {restarts}, segment {run.get('segments', 0) + 1}), " if run else ""
    at = time.strftime(", expected to start at %Y-%m-%d %H:%M", time.localtime(row.starts)) if row.starts else ""
    return f"{again}{row.reason}{at}"


def _leave_out(site: Site, client: Client, row: Row, nodes: str, name: str) -> None:
    """Keep a job that waits to be started again off the nodes on which it was lost."""
    found = node_memory.unfit(client, nodes)
    if not found or set(found) <= set(node_memory.bad(site)):
        return
    node_memory.remember(site, found, name)
    excluded = node_memory.shorten(node_memory.bad(site))
    with contextlib.suppress(Refused, Silent):  # it may have started meanwhile; the next look asks again
        client.run("scontrol", "update", f"JobId={row.id}", f"ExcNodeList={excluded}")


def _over(site: Site, client: Client, job: Job, row: Row, run: dict[str, Any], about: dict[str, Any]) -> JobState:
    """Return how a job ended that wrote no last word: by Slurm's state alone."""
    where = f"job {row.id}"
    if row.state == "CANCELLED" or (Path(job.folder) / CANCEL).exists():
        return JobState("cancelled", f"{where} was cancelled ({row.reason})", **about)
    if row.state in ("TIMEOUT", "DEADLINE"):
        limit = "give the launcher segment_hours below the partition's limit, or the stage fewer hours"
        return JobState("failed", f"{where} met Slurm's time limit before its hours were up; {limit}", **about)
    if row.state == "OUT_OF_MEMORY":
        return JobState("failed", f"{where} used more memory than its nodes have ({row.state})", **about)
    if row.state == "COMPLETED" and time.time() - _last_sign(job) < RECORD_SECONDS:
        return JobState("unknown", f"{where} has ended, and its exit record is not visible here yet", **about)
    found = node_memory.unfit(client, row.nodes or run.get("nodes", ""))
    node_memory.remember(site, found, job.name)
    bad = "".join(f"; {node} is {why}" for node, why in found.items())
    return JobState("lost", f"{where} is {row.state} ({row.reason}) and left no last word{bad}", **about)


def _last_sign(job: Job) -> float:
    """Return when the folder last changed, as far as can be seen from here."""
    return max((path.stat().st_mtime for path in (Path(job.folder), job.log) if path.exists()), default=0.0)
