"""What was amended of a run's recipe since it began: it stays frozen, its revisions are laid over it in turn."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from tasks.config.as_trained import as_trained, dump
from tasks.config.cluster import Cluster
from tasks.config.errors import Problem, from_pydantic, unknown
from tasks.config.experiment import Experiment
from tasks.config.recipe import Recipe
from tasks.errors import StageRefused
from tasks.plan import Ladder, StagePlan, difference, resolve, thaw
from tasks.stage_dir import RunDir, read_json, write_json

RATE, HOURS, CLUSTER = "learning_rate", "hours", "cluster."


@dataclass(frozen=True)
class Revision:
    """One amendment: it holds for a stage from the step after ``step`` on, and for all stages behind it.

    ``changes`` are new values by dotted key: of the recipe as that stage trains it, ``learning_rate``, ``hours``, and
    ``cluster.`` with a key of its cluster's file.
    """

    number: int  # the recipe that the run began with is 1
    stage: str
    step: int  # of the checkpoint that the stage goes on from
    changes: Mapping[str, Any]
    skip_samples: tuple[int, int] | None
    code: bool  # whether jobs from here on run the code as it lay at the amendment
    because: str
    by: str
    time: float
    lines: tuple[str, ...] = ()  # what it changed of the stage, ``optimizer.clip: 1.0 -> 0.5``

    @property
    def said(self) -> tuple[str, ...]:
        """A line for each thing that it changed."""
        return (*self.lines, *(["code: as it lay at the amendment"] if self.code else []))

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Revision:
        """Read what :func:`add` wrote."""
        skip = said["skip_samples"]
        return cls(**{**said, "skip_samples": tuple(skip) if skip else None, "lines": tuple(said["lines"])})


def revisions(run: RunDir) -> tuple[Revision, ...]:
    """Return a run's revisions, oldest first; none where nothing was amended."""
    return tuple(Revision.from_json(one) for one in (read_json(run.amendments) or {"revisions": []})["revisions"])


def add(run: RunDir, revision: Revision) -> None:
    """Write one more revision down; from then on it holds."""
    write_json(run.amendments, {"revisions": [asdict(one) for one in (*revisions(run), revision)]})


def revised(frozen: Mapping[str, Any], made: Sequence[Revision]) -> Ladder:
    """Return the ladder of a frozen recipe under its revisions; each leaves the stages before its own as they were.

    Raises StageRefused for a revision that the recipe cannot take, ConfigInvalid for what does not fit together.
    """
    experiment, clusters = thaw(frozen)
    ladder = resolve(experiment, clusters=clusters, **frozen["chosen"])
    plain: dict[str, Any] = {key: frozen[key] for key in ("experiment", "clusters")}
    rates: list[tuple[str, int, float]] = []
    for revision in made:
        plain = _laid_over(plain, ladder, revision)
        if RATE in revision.changes:
            rates.append((revision.stage, revision.step, float(revision.changes[RATE])))
        experiment, clusters = _read(plain, ladder.stage(revision.stage))
        after = resolve(experiment, clusters=clusters, **frozen["chosen"], amended_rates=rates)
        at = [stage.name for stage in ladder.stages].index(revision.stage)
        ladder = replace(ladder, stages=(*ladder.stages[:at], *after.stages[at:]))
    return ladder


def changed(before: StagePlan, after: StagePlan) -> tuple[str, ...]:
    """Return a line for each value of a stage that differs between two plans."""
    return tuple(difference(_seen(before), _seen(after)))


def _seen(plan: StagePlan) -> dict[str, Any]:
    own = {RATE: plan.learning_rate, HOURS: plan.hours, "cluster": dump(plan.cluster)}
    return {**dump(plan.recipe), **own}


def _laid_over(plain: Mapping[str, Any], ladder: Ladder, revision: Revision) -> dict[str, Any]:
    """Return the plain recipe with a revision's changes where they have the last word."""
    found: dict[str, Any] = copy.deepcopy(dict(plain))
    first = ladder.stage(revision.stage)
    recipe = {key: value for key, value in revision.changes.items() if key not in (RATE, HOURS)}
    if revision.skip_samples is not None:
        recipe["data"] = _skipping(first, revision.skip_samples)
    for plan in ladder.stages[[stage.name for stage in ladder.stages].index(first.name) :]:
        stage = found["experiment"]["stages"][plan.index]
        # A rehearsal's own keys are laid over the recipe, so what is amended of it must lie there.
        where = stage["rehearsal"] if plan.emulated else found["experiment"]["train"]
        for key, value in recipe.items():
            if key.startswith(CLUSTER):
                _set(found["clusters"][plan.cluster.name], key.removeprefix(CLUSTER), value)
            else:
                _set(stage if where is not stage["rehearsal"] and _own_layout(stage, key) else where, key, value)
        if plan.name == first.name and HOURS in revision.changes:
            (stage["rehearsal"] if plan.emulated else stage)[HOURS] = revision.changes[HOURS]
    return found


def _own_layout(stage: Mapping[str, Any], key: str) -> bool:
    """Whether a stage says itself how its model is cut, so that the recipe's word does not reach it."""
    return key.startswith("layout.") and stage.get("layout") is not None


def _skipping(plan: StagePlan, skip: tuple[int, int]) -> dict[str, Any]:
    """Return a stage's data as a mapping that leaves out one more range of samples."""
    said = dump(plan.recipe)["data"]
    data = {"sources": [said]} if isinstance(said, str) else dict(said)
    return {**data, "skip_samples": sorted([*data.get("skip_samples", []), list(skip)])}


def _set(into: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key, and make the mappings on the way that are not there."""
    *way, last = key.split(".")
    for part in way:
        if not isinstance(into.get(part), dict):
            into[part] = {}
        into = into[part]
    into[last] = value


def _read(plain: Mapping[str, Any], stage: StagePlan) -> tuple[Experiment, dict[str, Cluster]]:
    """Read the recipe under its revisions, whole and as the stage trains it; raise StageRefused for what is wrong."""
    model: type[BaseModel] = Experiment
    try:
        experiment = Experiment.model_validate(plain["experiment"])
        model = Recipe
        as_trained(experiment, stage.index, stage.emulated)
        model = Cluster
        return experiment, {name: Cluster.model_validate(one) for name, one in plain["clusters"].items()}
    except ValidationError as error:
        found = from_pydantic(error.errors(), model)
        raise StageRefused("".join(f"\n  {problem}" for problem in found).strip()) from None


def check_key(key: str) -> None:
    """Raise StageRefused for a key that a run cannot change, or that there is not."""
    if key in (RATE, HOURS):
        return
    top = key.removeprefix(CLUSTER).partition(".")[0]
    if key.startswith(CLUSTER):
        if top not in _CLUSTER:
            raise StageRefused(f"{Problem(key, unknown('amendable key of a cluster', top, _CLUSTER))}")
    elif top in _FORK:
        raise StageRefused(f"{key}: {_FORK[top]}, so this would be another run; start one with the changed recipe")
    elif top not in _RECIPE:
        raise StageRefused(f"{Problem(key, unknown('amendable key', top, (RATE, HOURS, *_RECIPE)))}")


_RECIPE = (
    "optimizer", "precision", "loss_scale", "layout", "micro_batch_sequences", "activation_checkpointing",
    "compression", "processes", "checkpointing",
)  # fmt: skip
_CLUSTER = ("launcher", "environment", "queue_hours", "orphan_hours", "poll_seconds")
_FORK = {
    "model": "a checkpoint fits one model",
    "sequence_length": "samples are cut by it, so the order of the data hangs on it",
    "data": "other data is another experiment (to leave some out: --skip-samples)",
    "seed": "weights and the order of the data follow from it",
    "schedule": "its steps are counted over the whole ladder (a rate from here on: --set learning_rate=...)",
    "batch_sequences": "steps are counted by it over the whole ladder",
    "gpus": "a stage is its GPUs",
    "steps": "the stages behind it count on from its last",
    "tokens": "the stages behind it count on from its last",
    "gates": "a verdict must not be bent to its outcome (another policy: scaleup rejudge; a person's word: promote)",
    "held_out": "losses would be compared over different sets",
    "reduction": "it decides what the losses are",
}
