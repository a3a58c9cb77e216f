"""Free a stage's GPUs, on a recorded cause only.

A task fails for many reasons that are not the job's: a full disk, a lost database, a scheduler's kill. None of them
may end a healthy two-week job, so without a cause in ``cause.json`` the job lives on, and is found again by name, for
``orphan_hours``.
"""

from __future__ import annotations

import time
from typing import Any, Literal

from tasks.launch import job_of, launcher_of, require_job
from tasks.measure import end_probes
from tasks.run import plan_of, runs
from tasks.stage_dir import StageDir, read_json, write_json

Cause = Literal["job_over", "gate", "live", "hours", "queue", "person", "orphan"]


def record_cause(stage: StageDir, cause: Cause, detail: str, **more: Any) -> dict[str, Any]:
    """Write down why the stage ended or must end; the first cause stays, whatever follows from it."""
    with stage.locked("cause"):
        known = read_json(stage.cause)
        if known is not None:
            return known
        record = {"cause": cause, "detail": detail, "time": time.time(), **more}
        write_json(stage.cause, record)
        return record


def mark_person(stage: StageDir, who: str, why: str) -> dict[str, Any]:
    """Record that a person ended the stage; call it only where a person is known to have done so, and before cancel.

    An exception in a task is nobody's wish: for that, call nothing, and :func:`cancel` leaves the job alone.
    """
    return record_cause(stage, "person", f"{who}: {why}", by=who)


def cancel(stage: StageDir) -> str:
    """End the stage's job if a cause is recorded, sweep up after one that is over, else leave it; say which."""
    if not stage.job.exists():
        return f"{stage.name} was never launched; nothing to cancel"
    if stage.cause.exists() or stage.promotion.exists():
        end_probes(stage, "the stage is over")
    with stage.locked("launch"):  # no repair begins a new attempt meanwhile
        return _cancel(stage)


def _cancel(stage: StageDir) -> str:
    job, decided = require_job(stage), plan_of(stage)
    launcher = launcher_of(decided)
    state = launcher.poll(job)
    cause = read_json(stage.cause)
    if state.state in ("succeeded", "failed", "cancelled"):
        launcher.cancel(job, "over")
        return f"{job.name} is over ({state.reason}); its GPUs are free"
    if cause is not None:
        # What a gate ends may be spoilt: the last good checkpoint is the one before. Others are worth a last one.
        launcher.cancel(job, cause["detail"], save=cause["cause"] not in ("gate", "live"))
        return f"{job.name} is cancelled ({cause['cause']}): {cause['detail']}"
    return (
        f"{job.name} is left as it is ({state.state}): no cause to end it is recorded. It is found again when launch "
        f"or watch of {stage.name} run again, within {decided.cluster.orphan_hours:g} hours"
    )


def reap(now: float | None = None) -> list[str]:
    """Cancel every job that nobody has looked at for its cluster's ``orphan_hours``; return a line for each."""
    ended = []
    for run in runs():
        for path in sorted(run.path.glob("*/job.json")):
            stage = StageDir(path.parent)
            why = overdue(stage, now)
            if why is not None:
                record_cause(stage, "orphan", why)
                ended.append(cancel(stage))
    return ended


def overdue(stage: StageDir, now: float | None = None) -> str | None:
    """Say why a job is nobody's any more by the time since the last look at it; None where it is over or watched."""
    now = time.time() if now is None else now
    job, decided = job_of(stage), plan_of(stage)
    if job is None or launcher_of(decided).poll(job).over:
        return None
    seen = (read_json(stage.watch) or {}).get("last_look", 0.0)
    submitted = (read_json(stage.job) or {}).get("submitted", 0.0)
    hours = (now - max(seen, submitted)) / 3600
    if hours <= decided.cluster.orphan_hours:
        return None
    limit = f"its cluster has orphan_hours: {decided.cluster.orphan_hours:g}"
    return f"nobody has looked at it for {hours:.1f} hours; {limit}"
