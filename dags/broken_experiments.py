"""Holds no DAG. What is wrong in an experiment's YAML becomes this file's import error, the red line on Airflow's page.

In ``scale_up.py`` the same error would take every other experiment's DAG away.
"""

from __future__ import annotations

from airflow.sdk import get_parsing_context

from tasks import plan
from tasks.config import experiments, load_experiment
from tasks.config.nightly import load_nightly, path
from tasks.errors import ConfigInvalid, ScaleupError


def problems() -> list[str]:
    """Return what is wrong, one text a broken file; gates are left to ``scaleup validate`` and to opening a run."""
    found = []
    for name in experiments():
        try:
            plan.resolve(load_experiment(name, gates=False))
        except ScaleupError as error:
            found.append(str(error))
    if path().is_file():
        try:
            load_nightly(check=False)
        except ScaleupError as error:
            found.append(str(error))
    return found


if get_parsing_context().dag_id is None and (_found := problems()):
    raise ConfigInvalid("\n\n".join(_found))
