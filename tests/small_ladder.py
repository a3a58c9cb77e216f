"""The experiment of config_texts as a ladder of plans, for tests that change it in one place or another."""

from __future__ import annotations

from typing import Any

import yaml
from config_texts import CLUSTER, EXPERIMENT

from tasks import plan
from tasks.config.cluster import Cluster
from tasks.config.experiment import Experiment

CLUSTERS = {"c": Cluster.model_validate({**yaml.safe_load(CLUSTER), "name": "c"})}


def experiment(**changes: Any) -> Experiment:
    """Return the experiment of the texts with top-level keys changed; ``stages`` maps an index to changed keys."""
    raw = yaml.safe_load(EXPERIMENT)
    for index, keys in changes.pop("stages", {}).items():
        raw["stages"][index].update(keys)
        raw["stages"][index] = {key: value for key, value in raw["stages"][index].items() if value is not None}
    return Experiment.model_validate({**raw, **changes, "name": "x"})


def ladder(**changes: Any) -> plan.Ladder:
    """Return the resolved ladder of the experiment with keys changed."""
    return plan.resolve(experiment(**changes), clusters=CLUSTERS)
