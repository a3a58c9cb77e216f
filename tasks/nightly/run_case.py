"""One run of a case, a look at a time: the functions that climb a ladder, on one stage, under an id that is for good.

Killed anywhere and called again it goes on with the same run, since night, case and attempt are its id.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.config.nightly_cases import Case
from tasks.errors import GateFailed, LaunchFailed, ScaleupError
from tasks.nightly import points
from tasks.nightly.measured import point_of
from tasks.nightly.points import Point
from tasks.run import open_run, plan_of, user
from tasks.run_id import safe

if TYPE_CHECKING:
    from tasks.stage_dir import RunDir, StageDir


@dataclass(frozen=True)
class Progress:
    """How far a run of a case is: its point once it is over, and a line for people."""

    point: Point | None
    line: str


def advance(case: Case, night: str, attempt: int) -> Progress:
    """Do what can be done now; a run that cannot go on becomes a point that says why. Raises LaunchFailed alone.

    A cluster that refuses a job just now may take it at the next look.
    """
    known = points.read(case.name, night, attempt)
    if known is not None:
        return Progress(known, f"{known.key} is measured")
    run = opened(case, night, attempt)
    decided = case.plan()
    stage = run.stage(decided.name)
    try:
        line = _step(stage)
        failed = ""
    except LaunchFailed:
        raise
    except ScaleupError as error:
        line, failed = "", str(error).splitlines()[0]
    if line:
        return Progress(None, line)
    point = _closed(case, night, attempt, stage, failed)
    return Progress(point, f"{point.key}: {failed or 'measured'}")


def run_id(case: Case, night: str, attempt: int) -> str:
    """Return the id of a case's run of a night: the same whenever it is asked."""
    return safe(f"nightly_{night}_{case.name.removeprefix(case.experiment).strip('-')}_{attempt + 1}")


def opened(case: Case, night: str, attempt: int) -> RunDir:
    """Open the run, or find it; modelled noise is drawn anew each time, weights and data are the case's."""
    key = f"{case.name}/{night}/{attempt}"
    drawn = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") >> 1
    decided = case.plan()
    return open_run(
        case.experiment,
        run_id=run_id(case, night, attempt),
        cluster=case.cluster,
        first=decided.name,
        last=decided.name,
        seed=case.seed,
        launch_seed=drawn if decided.emulated else None,
        note=f"night {night}, {case.name}, run {attempt + 1}",
        origin={"night": night, "case": case.name, "attempt": attempt, "by": user()},
        changes=case.changes,
    )


def _step(stage: StageDir) -> str:
    """Take the stage as far as it goes without waiting; return what it waits for, nothing once it is judged."""
    from tasks.evaluate import evaluate
    from tasks.forecast import forecast
    from tasks.launch import job_of, launch, launcher_of
    from tasks.measure import end_probes
    from tasks.watch import look

    if stage.verdict.exists():
        return ""
    waiting = forecast(stage).get("waiting_for")
    if waiting is not None:
        return str(waiting)
    job = job_of(stage)
    if job is None or launcher_of(plan_of(stage)).poll(job).state in ("queued", "unknown"):
        launch(stage)  # also where it was killed between writing the job down and submitting it
    seen = look(stage)
    if not seen.done and seen.state != "measuring":
        return seen.line
    end_probes(stage, "a night is measured as it is, without probes")
    # A night is judged by its series; what the gates of the ladder say of one short stage stands beside it.
    with contextlib.suppress(GateFailed):
        evaluate(stage)
    return ""


def _closed(case: Case, night: str, attempt: int, stage: StageDir, failed: str) -> Point:
    """Write the point, free the cluster, and drop checkpoints: nobody goes on from a night's."""
    from tasks.cancel import cancel, record_cause
    from tasks.launch import job_of, launcher_of
    from tasks.report import report

    job = job_of(stage)
    started = launcher_of(plan_of(stage)).poll(job).started if job else None
    if failed:
        record_cause(stage, "job_over", failed)
    cancel(stage)
    report(stage)
    point = point_of(case.name, night, attempt, stage, started, failed)
    points.write(point)
    shutil.rmtree(stage.checkpoints, ignore_errors=True)
    return point
