"""Change the recipe of a run that is under way, from a named checkpoint on: what, from where, by whom and why.

A run of weeks needs this: a rate after a spike, a range of poisonous samples, another image. What makes a checkpoint
useless or a comparison void is refused: that is another run.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tasks import tracking
from tasks.errors import ConfigInvalid, StageRefused
from tasks.launch import job_of, launcher_of, relaunch
from tasks.launchers import Job
from tasks.live.checkpoints import Kept, kept, newest, set_aside
from tasks.live.state import LiveState
from tasks.plan import StagePlan
from tasks.records import follow
from tasks.revisions import RATE, Revision, add, changed, check_key, revised, revisions
from tasks.run import plan_of
from tasks.stage_dir import StageDir, read_json, write_json
from training import manifest


@dataclass(frozen=True)
class Asked:
    """What a person wants changed."""

    changes: Mapping[str, Any] = field(default_factory=dict)  # new values by dotted key
    skip_samples: tuple[int, int] | None = None  # first and end of what is left out from here on
    image: str | None = None  # by its digest
    code: bool = False  # whether jobs run today's code from here on
    from_step: int | None = None  # of the checkpoint; None: save one more, if that works, and take the newest

    @classmethod
    def said(
        cls, pairs: Sequence[str], skip_samples: str | None, image: str | None, code: bool, from_step: int | None
    ) -> Asked:
        """Read what stands on the command line: ``KEY=VALUE`` with values as in YAML, and ``FIRST:END``."""
        skip = _range(skip_samples) if skip_samples else None
        return cls(dict(_pair(pair) for pair in pairs), skip, image, code, from_step)

    @property
    def keys(self) -> dict[str, Any]:
        """All changes by key, the image among them."""
        return {**self.changes, **({"cluster.environment.image": self.image} if self.image else {})}


def _pair(said: str) -> tuple[str, Any]:
    key, equals, value = said.partition("=")
    if not equals or not key.strip():
        raise ConfigInvalid(f"--set {said!r} must be KEY=VALUE, as in --set optimizer.clip=0.5")
    try:
        return key.strip(), yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigInvalid(f"--set {said!r}: what stands behind the = is no YAML") from None


def _range(said: str) -> tuple[int, int]:
    first, colon, end = said.partition(":")
    if not (colon and first.isdigit() and end.isdigit()):
        raise ConfigInvalid(f"--skip-samples {said!r} must be FIRST:END, two whole numbers, as in 40960:49152")
    return int(first), int(end)


@dataclass(frozen=True)
class Amended:
    """What came of it: the revision, and the attempt that began under it, None where nothing ran."""

    revision: Revision
    attempt: int | None


def amend(stage: StageDir, asked: Asked, *, because: str, by: str) -> Amended:
    """Write a new revision of the recipe down; a job under way ends, and its next attempt goes on under it.

    Whoever watches the stage waits meanwhile and then follows the new attempt. Killed on the way, nothing is lost: it
    is asked for again. Raises StageRefused, with nothing changed and the job untouched, for what cannot be amended.
    """
    if not because.strip():
        raise StageRefused(f'say why {stage.name} is amended: --because "..."; the report will name you and it')
    with stage.locked("watch"):
        if stage.promotion.exists():
            raise StageRefused(f"{stage.name} is promoted; amend the stage behind it")
        decided, job = plan_of(stage), job_of(stage)
        live = LiveState.from_json(read_json(stage.live))
        start = _checkpoint(stage, live, asked.from_step)
        revision = _drafted(stage, decided, asked, start, because=because, by=by)
        running = job is not None and not launcher_of(decided).poll(job).over
        if job is not None:
            launcher_of(decided).cancel(job, f"amended: {because}", save=running and asked.from_step is None)
            start = _checkpoint(stage, live, asked.from_step)  # one more, if it could save
            revision = _drafted(stage, decided, asked, start, because=because, by=by)
            _forget(stage, decided, live, job, revision.step)
        add(stage.run, revision)
        attempt = relaunch(stage, job).attempt if job is not None and running else None
    tracking.sync(stage.run)
    return Amended(revision, attempt)


def _checkpoint(stage: StageDir, live: LiveState, step: int | None) -> Kept | None:
    """Return the checkpoint of a step, or the newest; None where the stage's start is all there is."""
    found = newest(stage, live.rows, step)
    if step is not None and (found is None or found.step != step):
        there = ", ".join(str(one.step) for one in kept(stage, live.rows)) or "none"
        raise StageRefused(f"{stage.name} has no checkpoint of step {step}; there are: {there}")
    return found


def _drafted(
    stage: StageDir, decided: StagePlan, asked: Asked, start: Kept | None, *, because: str, by: str
) -> Revision:
    """Return the revision that is asked for, once its recipe proved to be one and to change something."""
    for key in asked.keys:
        check_key(key)
    rate = asked.changes.get(RATE, 1.0)
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 < rate < math.inf:
        raise StageRefused(f"{RATE}: must be a number greater than 0, not {rate!r}")
    made = revisions(stage.run)
    step = start.step if start else decided.first_step - 1
    skip = asked.skip_samples
    if skip is not None:
        _check_skip(decided, start, skip)
    number = made[-1].number + 1 if made else 2
    draft = Revision(number, stage.name, step, asked.keys, skip, asked.code, because, by, time.time())
    frozen = read_json(stage.run.recipe) or {}
    after = revised(frozen, (*made, draft)).stage(stage.name)
    lines = changed(decided, after)
    if not lines and not asked.code:
        said = ", ".join(f"{key}: {value}" for key, value in asked.keys.items()) or "nothing"
        raise StageRefused(f"{said} is what {stage.name} has already; there is nothing to amend")
    return replace(draft, lines=lines)


def _check_skip(decided: StagePlan, start: Kept | None, skip: tuple[int, int]) -> None:
    """Refuse a range that has been read: leaving it out afterwards would move all that came behind it."""
    if decided.trainer.name != "scaleup":
        raise StageRefused(f"--skip-samples is our own trainer's; {decided.trainer.name} has its own way to skip data")
    if skip[0] >= skip[1]:
        raise StageRefused(f"--skip-samples {skip[0]}:{skip[1]} is empty; it is FIRST:END, and END is not left out")
    read = int(manifest.read(start.path).extra.get("cursor", 0)) if start else 0
    if skip[0] < read:
        step = start.step if start else 0
        raise StageRefused(
            f"--skip-samples {skip[0]}:{skip[1]} begins before sample {read}, where the checkpoint of step {step} "
            "stands: what was trained on cannot be left out; go on from an older checkpoint with --from-step"
        )


def _forget(stage: StageDir, decided: StagePlan, live: LiveState, job: Job, step: int) -> None:
    """Put out of sight what the new attempt does anew: checkpoints, verdicts and records beyond the step."""
    set_aside(stage, live.rows, step, job.attempt)
    _, live.offset = follow(stage.metrics, live.offset)
    live.furthest = min(live.furthest, step)
    write_json(stage.live, live.to_json())
    seen = read_json(stage.watch)
    if seen is not None:
        write_json(stage.watch, {**seen, "step": min(seen["step"], step)})
    canary = [span.last_step for span in decided.spans if span.phase == "canary"]
    judged = [stage.verdict, stage.score, *([stage.early] if canary and step < canary[-1] else [])]
    for path in judged:
        if path.exists():
            os.replace(path, Path(job.folder) / path.name)
