"""Who has a cluster: a night never measures while a scale-up, or another case, is at work on it.

A scale-up holds its cluster by its folders: a job that its launcher calls alive, or a step taken in the last minutes.
So a ladder writes nothing for this, and none that died can hold a cluster for good. A night holds it by a file.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.errors import ScaleupError
from tasks.ladder_state import ENDED, stages_now
from tasks.launch import job_of, launcher_of
from tasks.nightly import points
from tasks.run import ladder_of, runs
from tasks.stage_dir import RunDir, read_json, write_json

FORGOTTEN_SECONDS = 7 * 86400.0  # a ladder at work is looked at every minute; older folders need not be resolved
BETWEEN_STEPS_SECONDS = 600.0  # from one stage's end to the next one's job: evaluation, promotion, a queue of Airflow's


def take(cluster: str, holder: str, hours: float, now: float | None = None) -> str | None:
    """Take a cluster for a night's case, or keep it; return None, or a sentence that says who has it.

    The lease ends by itself after ``hours``: a case that died lets go of the cluster.
    """
    now = time.time() if now is None else now
    with _locked(cluster) as path:
        known = read_json(path)
        if known is not None and known["holder"] != holder and known["until"] > now:
            return f"{cluster} is taken by {known['holder']}"
        mine = known is not None and known["holder"] == holder
        if not mine:
            ladder = scale_up_on(cluster, now)
            if ladder is not None:
                return ladder
        since = known["since"] if mine and known else now
        write_json(path, {"holder": holder, "until": since + 3600 * hours, "since": since})
        return None


def release(cluster: str, holder: str) -> None:
    """Let go of a cluster; quiet where another has it by now."""
    with _locked(cluster) as path:
        if (read_json(path) or {}).get("holder") == holder:
            path.unlink()


def scale_up_on(cluster: str, now: float) -> str | None:
    """Say which ladder is at work on a cluster, or None."""
    for run in runs():
        if (read_json(run.info) or {}).get("origin", {}).get("night") or now - _newest(run) > FORGOTTEN_SECONDS:
            continue
        said = _at_work(run, cluster, now)
        if said is not None:
            return f"{cluster} is taken by the scale-up {run.experiment}/{run.run_id} ({said})"
    return None


def _at_work(run: RunDir, cluster: str, now: float) -> str | None:
    try:
        ladder = ladder_of(run)
        states = stages_now(run)
    except ScaleupError:  # of another version: `scaleup status` says what is wrong with it
        return None
    here = [decided for decided in ladder.stages if decided.cluster.name == cluster]
    for decided in here:
        job = job_of(run.stage(decided.name))
        if job is not None and not (state := launcher_of(decided).poll(job)).over:
            return f"{decided.name} is {state.state}"
    over = all(stage.state == "promoted" for stage in states) or any(s.state in ENDED - {"promoted"} for s in states)
    waits = any(stage.state == "undecided" for stage in states)  # for a person, for days; its GPUs are free
    if here and not over and not waits and now - _newest(run) < BETWEEN_STEPS_SECONDS:
        return "it is between two steps"
    return None


def _newest(run: RunDir) -> float:
    """Return when anything of a run was last written."""
    return max((path.stat().st_mtime for path in run.path.glob("**/*.json") if path.is_file()), default=0.0)


@contextmanager
def _locked(cluster: str) -> Iterator[Path]:
    """Hold a cluster's lock, and say where its lease lies; a death lets go of the lock."""
    path = points.folder() / "leases" / f"{cluster}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path
