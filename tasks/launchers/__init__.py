"""What runs a stage's job, and where: the Launcher protocol. A launcher knows its cluster's words, nothing of stages.

To add one: a frozen dataclass with ``submit``, ``poll`` and ``cancel`` (its fields are its YAML schema), and a row in
``tests/launching.py``. Only the standard library here, since a job's supervisor imports this package.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

State = Literal["queued", "running", "succeeded", "failed", "lost", "cancelled", "unknown"]
"""queued: taken, not started; lost: it ended and nobody knows how; unknown: the cluster gives no answer just now."""

OVER: frozenset[State] = frozenset({"succeeded", "failed", "lost", "cancelled"})
"""States in which nothing runs any more."""


@dataclass(frozen=True)
class Job:
    """What a launcher runs. Two submits of one name are one job."""

    name: str
    attempt: int
    command: tuple[str, ...]
    nodes: int
    gpus_per_node: int
    hours: float
    folder: str  # of this attempt: its log and the launcher's own files
    metrics: str  # file that the job appends to: tells progress from standing still
    checkpoints: str  # folder in which the job's checkpoints appear
    cwd: str = "/"
    variables: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()  # shell lines before the command
    venv: str | None = None  # virtual environment whose python the command means; None: this one's
    secrets: tuple[str, ...] = ()  # names; their values never leave the file, but for the job's own environment
    secrets_file: str | None = None
    before: tuple[tuple[str, ...], ...] = ()  # commands that run first, in turn; one that fails stops nothing
    before_hours: float = 1.0  # of each of them at most
    sigusr1: bool = False  # the command's own process saves and exits 0 when it gets SIGUSR1
    before_nodes: tuple[int, ...] = ()  # on how many nodes each of ``before`` runs; empty: on all
    code: str | None = None  # folder of the project's code that the job runs; None: as it lies here
    image: str | None = None  # container image by digest, in which the commands run
    container: str | None = None  # what runs it: pyxis | apptainer
    mounts: tuple[str, ...] = ()  # HERE:INSIDE[:ro] of the container
    modules: tuple[str, ...] = ()  # loaded before anything else

    @property
    def log(self) -> Path:
        """What the job prints, over all restarts."""
        return Path(self.folder) / "log.txt"

    def to_json(self) -> dict[str, Any]:
        """Return the plain dictionary that ``job.json`` holds."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Job:
        """Read what :meth:`to_json` wrote; keys of other writers are passed over."""
        known = {f.name: value[f.name] for f in dataclasses.fields(cls) if f.name in value}
        for name in ("command", "setup", "secrets", "before_nodes", "mounts", "modules"):
            known[name] = tuple(known.get(name, ()))
        known["before"] = tuple(tuple(command) for command in known.get("before", ()))
        return cls(**known)


@dataclass(frozen=True)
class JobState:
    """A launcher's answer to how a job is."""

    state: State
    reason: str = ""  # finished | program | hours | cancelled | ... and what a person may read
    exit_code: int | None = None
    restarts: int = 0  # how often it was started again after a death by signal
    started: float | None = None  # seconds since the epoch
    log: str = ""
    queued_since: float | None = None  # seconds since the epoch; None: since it was submitted
    ran_seconds: float | None = None  # over all its starts, without its time in queues; None: since it started
    expects: str = ""  # of a waiting job: why it waits, and when its cluster expects to start it

    @property
    def over(self) -> bool:
        """Whether nothing runs any more."""
        return self.state in OVER


class Launcher(Protocol):
    """How one kind of cluster is told to run, is asked about, and is told to stop a job."""

    def submit(self, job: Job) -> str:
        """Start the job, or find it already there by name; return its id. Raises ``LaunchFailed``."""

    def poll(self, job: Job) -> JobState:
        """Say how the job is now. Never raises for a cluster that does not answer: that is ``unknown``."""

    def cancel(self, job: Job, because: str, *, save: bool = False) -> None:
        """Stop the job and whatever it started; quiet if it is already over or never was.

        With ``save`` a job that answers SIGUSR1 gets that first, and time to save; so it does before its hours are up.
        """
