"""What the steps of a stage import, loaded once in the scheduler.

LocalExecutor forks every task from the scheduler, so each finds these in memory. Loading them in each task costs
3 s of processor time here (pandas and scipy 1.2, mlflow 1.6), which a ladder would pay for about twenty times.
"""

from __future__ import annotations

import importlib
import sys

MODULES = ("pandas", "scipy.special", "mlflow", "jinja2", "pydantic", "yaml")

LOCAL_SETTINGS = "from tasks.services.preload import in_scheduler\n\nin_scheduler()\n"
"""Text of ``airflow_local_settings.py``, which every Airflow process imports as it starts."""


def in_scheduler() -> None:
    """Import :data:`MODULES` where this process is the scheduler."""
    if "scheduler" in sys.argv[1:2]:
        for name in MODULES:
            importlib.import_module(name)
