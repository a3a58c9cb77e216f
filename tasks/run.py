"""A run from its first moment: the recipe frozen, who started it and why, and whether the files still say the same."""

from __future__ import annotations

import functools
import getpass
import hashlib
import importlib.metadata
import platform
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks import config, plan
from tasks.config import files
from tasks.errors import ScaleupError, StageRefused
from tasks.revisions import revised, revisions
from tasks.stage_dir import RunDir, StageDir, home, read_json, write_json

_RUN_ID = re.compile(r"[A-Za-z0-9_-]+")
_FREE_TO_CHANGE = ("description:", "owner:")  # what is said about a recipe is not the recipe


def new_run_id(now: float | None = None) -> str:
    """Return the run id of this second, ``YYYYmmdd_HHMMSS``."""
    return time.strftime("%Y%m%d_%H%M%S", time.localtime(now))


def open_run(
    experiment: str,
    *,
    run_id: str,
    cluster: str | None = None,
    first: str | None = None,
    last: str | None = None,
    seed: int | None = None,
    launch_seed: int | None = None,
    note: str = "",
    origin: Mapping[str, Any],
    changes: Mapping[str, Any] | None = None,
) -> RunDir:
    """Freeze the recipe and write down who runs it; a second call finds what the first wrote and changes nothing.

    ``launch_seed`` draws modelled noise anew while ``seed`` keeps weights and the order of data: for repeats.
    ``changes`` are keys laid over the experiment's file, for this run alone.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise ScaleupError(f"run id {run_id!r} must be letters, digits, _ and - only, since folders bear its name")
    run = RunDir.of(experiment, run_id)
    chosen: dict[str, Any] = {"cluster": cluster, "first": first, "last": last, "seed": seed}
    if launch_seed is not None:
        chosen["launch_seed"] = launch_seed
    if run.info.exists() and run.recipe.exists():
        _refuse_other_choice(run, chosen)
        return run
    loaded = config.load_experiment(experiment, changes=changes)
    clusters = config.clusters_of(loaded, cluster)
    ladder = plan.resolve(loaded, clusters=clusters, **chosen)
    laid_over = {"changes": dict(changes)} if changes else {}
    write_json(run.recipe, {**plan.freeze(loaded, clusters), "chosen": chosen, **laid_over})
    info = {
        "experiment": experiment, "run_id": run_id, "note": note, "origin": dict(origin), **chosen,
        "stages": [stage.name for stage in ladder.stages], "digest": ladder.digest, "started": time.time(),
        "by": origin.get("by") or user(), "host": platform.node(), "commit": _commit(), "environment": _environment(),
    }  # fmt: skip
    write_json(run.info, info)
    return run


def _refuse_other_choice(run: RunDir, said: Mapping[str, Any]) -> None:
    """Raise StageRefused where a run that has begun is asked for otherwise; what is not said stays as it was."""
    begun = (read_json(run.recipe) or {})["chosen"]
    other = [f"{key} {value} (it has {begun.get(key) or 'none chosen'})" for key, value in said.items()
             if value is not None and value != begun.get(key)]  # fmt: skip
    if other:
        raise StageRefused(
            f"run {run.run_id} has begun and cannot be given {', '.join(other)}; "
            "go on with it as it is, or start a new run"
        )


def ladder_of(run: RunDir) -> plan.Ladder:
    """Return the run's ladder as it was when the run began, and amended since; raise StageRefused for no run."""
    frozen = read_json(run.recipe)
    if frozen is None:
        raise StageRefused(f"{run.path} holds no run; {_known_runs()}")
    return revised(frozen, revisions(run))


def plan_of(stage: StageDir) -> plan.StagePlan:
    """Return what was decided of a stage when its run began."""
    return ladder_of(stage.run).stage(stage.name)


def check_recipe_unchanged(run: RunDir) -> None:
    """Raise StageRefused with each value that the files now say otherwise than when the run began."""
    frozen = read_json(run.recipe) or {}
    where = files.config_root() / "experiments" / f"{run.experiment}.yaml"
    advice = "restore the file, or start a new run with the changed recipe"
    if not where.exists():
        raise StageRefused(f"{where} is gone since run {run.run_id} began; {advice}")
    loaded = config.load_experiment(run.experiment, changes=frozen.get("changes"))
    now = plan.freeze(loaded, config.clusters_of(loaded, frozen["chosen"]["cluster"]))
    kept = {key: frozen[key] for key in now}
    changed = [line for line in plan.difference(kept, now) if not line.startswith(_FREE_TO_CHANGE)]
    if changed:
        listed = "".join(f"\n  {line}" for line in changed)
        raise StageRefused(f"the recipe of {run.experiment} changed since run {run.run_id} began:{listed}\n{advice}")


def runs(experiment: str | None = None) -> Iterator[RunDir]:
    """Yield all runs, oldest first."""
    found = [RunDir(path.parent) for path in (home() / "runs").glob(f"{experiment or '*'}/*/run.json")]
    return iter(sorted(found, key=lambda run: ((read_json(run.info) or {}).get("started", 0.0), run.path)))


def find_run(said: str) -> RunDir:
    """Return the run that a person means: ``experiment/run_id``, a run id, ``latest``, ``experiment/latest``."""
    experiment, _, run_id = said.rpartition("/")
    found = list(runs(experiment or None))
    matching = found[-1:] if run_id == "latest" else [run for run in found if run.run_id == run_id]
    if not matching and not experiment:
        matching = list(runs(said))[-1:]  # an experiment's name alone: its latest run
    if len(matching) != 1:
        reason = "is no run" if not matching else "is the id of several runs; write experiment/run_id"
        raise ScaleupError(f"{said!r} {reason}; {_known_runs()}")
    return matching[0]


def _known_runs() -> str:
    names = [f"{run.experiment}/{run.run_id}" for run in runs()][-5:]
    return (
        f"the latest runs are {', '.join(reversed(names))}" if names else f"there are no runs in {home() / 'runs'} yet"
    )


def user() -> str:
    """Return the name of whoever runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"


def _commit() -> str | None:
    """Return the commit of the code that runs, with ``+changes`` where files differ from it."""
    root = Path(__file__).resolve().parent.parent
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


@functools.cache
def _environment() -> str:
    """Return a digest of all installed distributions and the Python version: equal where the environment is."""
    names = sorted({f"{d.name}=={d.version}" for d in importlib.metadata.distributions()})
    return hashlib.sha256("\n".join([platform.python_version(), *names]).encode()).hexdigest()
