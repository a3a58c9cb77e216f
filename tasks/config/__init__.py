"""Experiment, Cluster, Stage; load one, or say all that is wrong, where, and what would be right.

Importing this module and loading with ``gates=False`` needs neither pandas nor scipy: DAG files parse with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tasks.config import files
from tasks.config.as_trained import (
    PACE_KEYS,
    RECIPE_KEYS,
    RUN_KEYS,
    STAGE_KEYS,
    dump,
    rehearsed_recipe,
    rehearsed_stage,
)
from tasks.config.cluster import Cluster, Environment, Network, Strict, clusters, load_cluster, parse_cluster
from tasks.config.errors import Problem, absent, from_pydantic, invalid, unknown
from tasks.config.experiment import Experiment, Stage
from tasks.config.gates_asked import capability_problems, gate_problems
from tasks.config.recipe import Layout, Recipe
from tasks.config.rules import problems as rule_problems
from tasks.config.rules import stage_clusters
from tasks.config.trainer import CAPABILITIES, Trainer
from tasks.errors import ConfigInvalid

__all__ = [
    "CAPABILITIES",
    "Cluster",
    "ConfigInvalid",
    "Environment",
    "Experiment",
    "Layout",
    "Network",
    "Recipe",
    "Stage",
    "Strict",
    "Trainer",
    "clusters",
    "clusters_of",
    "dump",
    "experiments",
    "load_cluster",
    "load_experiment",
    "parse_cluster",
]

_NAME = re.compile(r"[a-z0-9_]+")


def experiments() -> list[str]:
    """Return the names of all experiments that have a file; contents are not read."""
    return files.names("experiments")


def clusters_of(experiment: Experiment, cluster: str | None = None) -> dict[str, Cluster]:
    """Load every cluster that an experiment names, ``cluster`` standing for the experiment's own if given."""
    wanted = {stage.cluster or cluster or experiment.cluster for stage in experiment.stages}
    return {name: load_cluster(name) for name in sorted(wanted)}


def load_experiment(
    name_or_path: str | Path, *, gates: bool = True, changes: Mapping[str, Any] | None = None
) -> Experiment:
    """Return the experiment in a file, named by its stem or its path, with ``changes`` laid over what it says.

    Raises ConfigInvalid with everything that is wrong at once. ``gates=False`` leaves the gates unchecked, which
    saves the import of pandas.
    """
    path = _path(name_or_path)
    raw, extends = files.read(path, "experiment")
    raw = files.deep_merge(raw, changes or {})
    experiment, problems = _parse(raw, path)
    problems += _overrides(raw)
    problems += _clusters(raw)
    if gates:
        problems += gate_problems(_stages(raw), _trainer(raw))
    if experiment is not None and not problems:
        problems += rule_problems(experiment, stage_clusters(experiment, clusters_of(experiment)))
    if experiment is None or problems:
        raise invalid(path, "experiment", problems, extends)
    return experiment


def _path(name_or_path: str | Path) -> Path:
    given = str(name_or_path)
    root = files.config_root() / "experiments"
    path = Path(given) if given.endswith(".yaml") or "/" in given else root / f"{given}.yaml"
    if not path.is_file():
        raise absent(path, "experiment", experiments())
    if not _NAME.fullmatch(path.stem):
        text = f"the file's name is the experiment's name and may hold a-z, 0-9 and _ only, not {path.stem!r}"
        raise invalid(path, "experiment", [Problem("file", text)])
    return path


def _parse(raw: Mapping[str, Any], path: Path) -> tuple[Experiment | None, list[Problem]]:
    problems = []
    if "name" in raw:
        problems.append(Problem("name", "is not needed: the file's name is the experiment's name; remove the key"))
    plain_keys = {key: value for key, value in raw.items() if key != "name"}
    try:
        experiment = Experiment.model_validate({**plain_keys, "name": path.stem})
    except ValidationError as error:
        return None, problems + from_pydantic(error.errors(), Experiment)
    return experiment, problems + capability_problems(experiment.trainer)


def _stages(raw: Mapping[str, Any]) -> list[Any]:
    stages = raw.get("stages")
    return stages if isinstance(stages, list) else []


def _trainer(raw: Mapping[str, Any]) -> Trainer | None:
    """Return the trainer alone, so that gates are checked against it even where another key is wrong."""
    field = Experiment.model_fields["trainer"]
    try:
        trainer: Trainer = TypeAdapter(Trainer).validate_python(
            _before(field.metadata, raw["trainer"]) if "trainer" in raw else Trainer()
        )
    except (ValidationError, ValueError):
        return None
    return trainer


def _before(metadata: Sequence[Any], value: Any) -> Any:
    for step in metadata:
        value = step.func(value)
    return value


def _clusters(raw: Mapping[str, Any]) -> list[Problem]:
    """Return the clusters that are named and have no file."""
    named = {"cluster": raw.get("cluster")}
    for index, stage in enumerate(_stages(raw)):
        if isinstance(stage, Mapping):
            named[f"stages.{index}.cluster"] = stage.get("cluster")
    there = clusters()
    return [
        Problem(where, unknown("cluster", name, there))
        for where, name in named.items()
        if isinstance(name, str) and name and name not in there
    ]


def _overrides(raw: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong in the rehearsal blocks, the experiment's own and each stage's."""
    ladder = _mapping(raw.get("rehearsal"))
    train = _mapping(raw.get("train"))
    problems = _keys("rehearsal", ladder, (*RUN_KEYS, *PACE_KEYS, *RECIPE_KEYS))
    problems += _within(Recipe, rehearsed_recipe(train, ladder), ladder, ("rehearsal",))
    problems += _within(Experiment, {**raw, **ladder}, _chosen(ladder, RUN_KEYS), ("rehearsal",))
    problems += _within(Stage, ladder, _chosen(ladder, PACE_KEYS), ("rehearsal",))
    for index, stage in enumerate(_stages(raw)):
        own = _mapping(_mapping(stage).get("rehearsal"))
        place: tuple[str | int, ...] = ("stages", index, "rehearsal")
        problems += _keys(f"stages.{index}.rehearsal", own, (*STAGE_KEYS, *RECIPE_KEYS))
        problems += _within(Recipe, rehearsed_recipe(train, ladder, own), own, place)
        problems += _within(Stage, rehearsed_stage(stage, own), own, place)
    return problems


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _chosen(override: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in override.items() if key in keys}


def _keys(where: str, override: Mapping[str, Any], there: Sequence[str]) -> list[Problem]:
    return [Problem(where, unknown("key", key, sorted(there))) for key in override if key not in there]


def _within(
    model: type[Strict], merged: Mapping[str, Any], override: Mapping[str, Any], place: tuple[str | int, ...]
) -> list[Problem]:
    """Return what is wrong with the merged mapping at places that the override wrote."""
    try:
        model.model_validate(merged)
    except ValidationError as error:
        mine = [detail for detail in error.errors() if _wrote(override, detail["loc"])]
        return from_pydantic(mine, model, place)
    return []


def _wrote(override: Any, location: Sequence[str | int]) -> bool:
    """Return whether an override wrote the value at a location of the merged mapping."""
    for part in location:
        if not isinstance(override, Mapping):
            return True  # a list or a number of the override, and what is wrong lies inside
        if str(part).startswith("="):
            continue
        if part not in override:
            return False
        override = override[part]
    return True
