"""The folder of a run and of a stage: the only place that knows their file names, and how to write them whole."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import ScaleupError
from training.config import CHECKPOINTS, CONFIG, METRICS


def home() -> Path:
    """Return the folder that holds runs, store and the services' own state (``SCALEUP_HOME``, else ``.scaleup``)."""
    return Path(os.environ.get("SCALEUP_HOME", Path(__file__).resolve().parent.parent / ".scaleup")).absolute()


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write ``text`` so that a reader sees the old file or the new one, never a part (temp file, fsync, rename).

    A run's files may be read by everyone who may enter its folder; a secret is written with ``mode`` 0600.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            os.fchmod(handle, mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object whole; NaN and infinity are refused, since other readers would refuse them later."""
    write_whole(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in ``path``, or None where there is no such file."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as error:
        said = f"{path} is not JSON ({error}); it is written whole, so something else changed it"
        raise ScaleupError(said) from error
    if not isinstance(value, dict):
        raise ScaleupError(f"{path} holds a {type(value).__name__}, not an object")
    return value


@dataclass(frozen=True)
class RunDir:
    """``runs/<experiment>/<run id>/``: ``run.json`` (who, when, why), ``recipe.json`` (frozen), one folder a stage."""

    path: Path

    @classmethod
    def of(cls, experiment: str, run_id: str) -> RunDir:
        """Return the folder of a run by its two names; it need not exist yet."""
        return cls(home() / "runs" / experiment / run_id)

    @property
    def experiment(self) -> str:
        """Name of the experiment."""
        return self.path.parent.name

    @property
    def run_id(self) -> str:
        """Id of the run, unique within its experiment."""
        return self.path.name

    @property
    def info(self) -> Path:
        """Who started the run, when, from which commit, on which cluster, with which seed."""
        return self.path / "run.json"

    @property
    def recipe(self) -> Path:
        """The experiment and its clusters as they were when the run began."""
        return self.path / "recipe.json"

    @property
    def amendments(self) -> Path:
        """What was amended of the recipe since, from which step of which stage, by whom and why."""
        return self.path / "amendments.json"

    @property
    def tracking(self) -> Path:
        """Ids of the MLflow run, once it exists."""
        return self.path / "tracking.json"

    @property
    def report_html(self) -> Path:
        """The ladder report, for people."""
        return self.path / "report.html"

    @property
    def report_md(self) -> Path:
        """The ladder report as text."""
        return self.path / "report.md"

    def stage(self, name: str) -> StageDir:
        """Return the folder of one stage."""
        return StageDir(self.path / name)


@dataclass(frozen=True)
class JobDir:
    """A folder with orders, a job that carries them out, and its records: a stage's, or a probe's."""

    path: Path

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    @property
    def run(self) -> RunDir:
        """The run this folder belongs to."""
        return RunDir(self.path.parent)

    @property
    def config(self) -> Path:
        """The trainer's orders."""
        return self.path / CONFIG

    @property
    def metrics(self) -> Path:
        """What the trainer recorded."""
        return self.path / METRICS

    @property
    def checkpoints(self) -> Path:
        """Checkpoints that the trainer wrote, one folder each."""
        return self.path / CHECKPOINTS

    @property
    def job(self) -> Path:
        """The job that runs it: name, attempt, id, command."""
        return self.path / "job.json"

    def attempt(self, number: int) -> Path:
        """Folder of one attempt: ``log.txt`` and the launcher's own records."""
        return self.path / f"attempt_{number}"


class StageDir(JobDir):
    """``runs/<experiment>/<run id>/gpus_64/``: all that a stage is.

    Its name is that of the Airflow task group and the report's title alike.
    """

    @property
    def forecast(self) -> Path:
        """What the stage should show, registered before it starts, and the entry gates' checks."""
        return self.path / "forecast.json"

    @property
    def watch(self) -> Path:
        """What the last look saw: progress, early gates' checks, how far MLflow has been fed."""
        return self.path / "watch.json"

    @property
    def live(self) -> Path:
        """Alarms of the live rules, and what these remember between looks."""
        return self.path / "live.json"

    def set_aside(self, number: int) -> Path:
        """Folder for checkpoints of an attempt that nobody goes on from: written after its records went wrong."""
        return self.attempt(number) / "set_aside"

    def set_aside_mark(self, number: int) -> Path:
        """After which step nobody goes on from what was written until then, and when that was decided."""
        return self.attempt(number) / "set_aside.json"

    @property
    def set_aside_marks(self) -> list[Path]:
        """All of these, of any attempt."""
        return sorted(self.path.glob("attempt_*/set_aside.json"))

    @property
    def tracking(self) -> Path:
        """Id of the MLflow child run and how far its curves have been shipped."""
        return self.path / "tracking.json"

    @property
    def early(self) -> Path:
        """The early gates' checks, once the canary's records are complete."""
        return self.path / "early.json"

    @property
    def cause(self) -> Path:
        """Why the stage ended or must end; ``cancel`` acts on nothing else."""
        return self.path / "cause.json"

    @property
    def leave(self) -> Path:
        """A person's recorded leave to go on although an entry or early gate said no: who, why."""
        return self.path / "leave.json"

    def probe(self, name: str) -> ProbeDir:
        """Return the folder of one probe by name; it need not exist yet."""
        return ProbeDir(self.path / "probes" / name)

    @property
    def probes(self) -> list[ProbeDir]:
        """The probes ordered so far, by name."""
        return [ProbeDir(path.parent) for path in sorted((self.path / "probes").glob("*/probe.json"))]

    @property
    def hand_over(self) -> Path:
        """Checkpoints of a foreign format, with the manifest that we wrote for them."""
        return self.path / "hand_over"

    @property
    def start(self) -> Path:
        """The promoted checkpoint that the stage goes on from, fetched out of the store."""
        return self.path / "start"

    @contextmanager
    def locked(self, what: str) -> Iterator[None]:
        """Hold the stage's lock for ``what``, so that two tasks at once do it in turn; a death lets go of it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / f".{what}.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @property
    def verdict(self) -> Path:
        """All checks of the stage and their worst outcome."""
        return self.path / "verdict.json"

    @property
    def score(self) -> Path:
        """The stage's forecast against what came of it."""
        return self.path / "score.json"

    @property
    def promotion(self) -> Path:
        """The recorded leave to start the next stage."""
        return self.path / "promotion.json"

    @property
    def report_html(self) -> Path:
        """The stage report, for people."""
        return self.path / "report.html"

    @property
    def report_md(self) -> Path:
        """The stage report as text."""
        return self.path / "report.md"


class ProbeDir(JobDir):
    """``gpus_64/probes/gpus_16/`` inside the allocation, ``gpus_64.1`` where it was bought: measures speed alone."""

    @property
    def run(self) -> RunDir:
        """The run of the stage that it is a probe for."""
        return RunDir(self.path.parents[2])

    @property
    def order(self) -> Path:
        """Its size and steps, which gate asked for it and why, and whether it runs inside the stage's own job."""
        return self.path / "probe.json"
