"""Jobs whose run is over, found on the clusters themselves, and ended: what teardowns missed leaves no GPUs behind.

A job is an orphan where its stage has a recorded cause to end or is promoted, where an orchestrator has forgotten the
run, where nobody has looked at it for its cluster's ``orphan_hours``, or where it bears this deployment's id and no
run's folder names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tasks import config
from tasks.cancel import cancel, overdue, record_cause
from tasks.config.launchers import SlurmConfig
from tasks.deployment import deployment_id
from tasks.errors import ScaleupError
from tasks.launch import job_of, launcher_of, slurm_at
from tasks.run import plan_of, runs
from tasks.stage_dir import RunDir, StageDir, read_json


@dataclass(frozen=True)
class Orphan:
    """A job that must end: its name, why, and what ends it and says so."""

    name: str
    why: str
    end: Callable[[], str]


def reap(
    now: float | None = None, *, forgotten: Callable[[RunDir], bool] = lambda run: False, end: bool = True
) -> list[str]:
    """End every orphan, or only list them; return a line for each. ``forgotten`` is an orchestrator's word on a run."""
    lines = []
    for orphan in [*_of_runs(now, forgotten), *_of_no_run()]:
        said = f"{orphan.name}: {orphan.why}"
        if end:
            try:
                said = f"{said}; {orphan.end()}"
            except ScaleupError as error:
                said = f"{said}; it could not be ended: {error}"
        lines.append(said)
    return lines


def _of_runs(now: float | None, forgotten: Callable[[RunDir], bool]) -> Iterator[Orphan]:
    for run in runs():
        for path in sorted(run.path.glob("*/job.json")):
            stage = StageDir(path.parent)
            job = job_of(stage)
            if job is None or launcher_of(plan_of(stage)).poll(job).over:
                continue
            why = _why(stage, now, forgotten)
            if why is not None:
                yield Orphan(job.name, why, partial(_end, stage, why))


def _why(stage: StageDir, now: float | None, forgotten: Callable[[RunDir], bool]) -> str | None:
    cause = read_json(stage.cause)
    if stage.promotion.exists():
        return f"{stage.name} is promoted"
    if cause is not None:
        return f"{stage.name} was stopped ({cause['cause']}): {cause['detail']}"
    if forgotten(stage.run):
        return f"run {stage.run.experiment}/{stage.run.run_id} was deleted where it was started"
    return overdue(stage, now)


def _end(stage: StageDir, why: str) -> str:
    if not stage.promotion.exists():
        record_cause(stage, "orphan", why)
    return cancel(stage)


def _of_no_run() -> Iterator[Orphan]:
    """Yield the jobs on Slurm that this deployment named and that no run's folder knows by now."""
    known = {str((read_json(path) or {}).get("name")) for run in runs() for path in run.path.rglob("job.json")}
    asked = set()
    for name in config.clusters():
        try:
            cluster = config.load_cluster(name)
        except ScaleupError:  # `scaleup validate` says what is wrong with the file
            continue
        if not isinstance(cluster.launcher, SlurmConfig):
            continue
        launcher = slurm_at(cluster, cluster.launcher)
        if launcher.ssh in asked:
            continue  # the same Slurm by another file
        asked.add(launcher.ssh)
        for found in launcher.names():
            if found.endswith(f".{deployment_id()}") and found not in known:
                yield Orphan(found, "no run's folder names it", partial(launcher.end, found))
