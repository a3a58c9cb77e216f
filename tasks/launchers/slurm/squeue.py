"""What Slurm's queue says of jobs by their name or number; ``squeue`` is the truth while it knows a job, then sacct."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.launchers.slurm.client import Client, Refused, Silent

# jobid, state, reason, nodes, submitted, expected or real start, name; a unit separator is in none of them
_EPOCH = ("env", "SLURM_TIME_FORMAT=%s")  # seconds since the epoch, whatever a login node's time zone is
_FORMAT = "\x1f".join(("%i", "%T", "%r", "%N", "%V", "%S", "%j"))

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
ENDING = frozenset({"COMPLETING", "STAGE_OUT", "SIGNALING"})
RUNNING = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING"})
LIVE = WAITING | ENDING | RUNNING
NODES_FAULT = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"})

_GHOSTS = ("BadConstraints",)  # what sbatch refused, and leaves behind under the job's name


@dataclass(frozen=True)
class Row:
    """A job as Slurm shows it."""

    id: str
    state: str
    reason: str
    nodes: str
    submitted: float | None
    starts: float | None
    name: str

    @property
    def live(self) -> bool:
        """Whether it waits, runs, or is being cleaned up after."""
        return self.state in LIVE

    @property
    def ghost(self) -> bool:
        """Whether it never was a job: sbatch was refused, and said so."""
        return self.state == "FAILED" and self.reason in _GHOSTS


def named(client: Client, name: str) -> list[Row]:
    """Return all jobs of this user that bear the name and are known, oldest first; raise Silent."""
    said = _asked(client, "--states=all", "--me", f"--name={name}")
    return sorted(_rows(said), key=lambda row: _number(row.id))


def of_user(client: Client) -> list[Row]:
    """Return all jobs of this user that wait or run; raise Silent."""
    return _rows(_asked(client, "--me"))


def numbered(client: Client, job_id: str) -> Row | None:
    """Return the job of that number, or None where Slurm has forgotten it; raise Silent."""
    try:
        rows = _rows(_asked(client, "--states=all", f"--jobs={job_id}"))
    except Silent as error:
        if "Invalid job id" in str(error):
            return None
        raise
    return rows[0] if rows else None


def remembered(client: Client, name: str) -> list[Row]:
    """Return what accounting knows of jobs of that name, oldest first; nothing where a site keeps none."""
    fields = "JobID,State,NodeList,Submit,Start,JobName"
    command = (*_EPOCH, "sacct", "-X", "-n", "-P", f"--name={name}", f"--format={fields}", "--starttime=now-30days")
    try:
        said = client.run(*command)
    except (Refused, Silent):  # no accounting here, or its daemon is away; squeue has been asked before
        return []
    rows = []
    for line in said.splitlines():
        job_id, state, nodes, submitted, started, job_name = line.split("|", 5)
        word = state.split()[0] if state else ""  # `CANCELLED by 1000`
        rows.append(Row(job_id, word, "", nodes, _time(submitted), _time(started), job_name))
    return sorted(rows, key=lambda row: _number(row.id))


def chosen(rows: list[Row]) -> Row | None:
    """Return the one that is the job: the first of its name that sbatch was not refused."""
    return next((row for row in rows if not row.ghost), None)


def _asked(client: Client, *which: str) -> str:
    """Return what squeue prints; an error of its own (no configuration, a wrong version) is no answer either."""
    try:
        return client.run(*_EPOCH, "squeue", "--noheader", f"--format={_FORMAT}", *which)
    except Refused as error:
        raise Silent(str(error)) from error


def _rows(said: str) -> list[Row]:
    found = []
    for line in said.splitlines():
        job_id, state, reason, nodes, submitted, starts, name = line.split("\x1f")
        found.append(Row(job_id, state, reason, nodes, _time(submitted), _time(starts), name))
    return found


def _number(job_id: str) -> int:
    digits = job_id.partition("_")[0].partition("+")[0].partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def _time(said: str) -> float | None:
    """Return seconds since the epoch; None for ``N/A`` and ``Unknown``."""
    return float(said) if said.isdigit() else None
