"""What must be true before anything is started; what is not is said in one sentence, with what would help."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator

from tasks import config
from tasks.errors import ScaleupError
from tasks.services import ports, process
from tasks.stage_dir import home

PYTHON = (3, 11)
NEEDED_GIB = 1.0  # databases, logs and checkpoints of a few runs
_PACKAGES = {"airflow": "apache-airflow", "mlflow": "mlflow", "torch": "torch", "psutil": "psutil"}


class NotReady(ScaleupError):
    """This machine cannot run the demo as it is."""


def check(experiment: str, airflow_port: int, mlflow_port: int) -> None:
    """Raise :class:`NotReady`, or ConfigInvalid for the experiment's file, naming all that stands in the way."""
    config.load_experiment(experiment)
    found = [*_python(), *_packages(), *_disk(), *_ports({"AIRFLOW_PORT": airflow_port, "MLFLOW_PORT": mlflow_port})]
    if found:
        raise NotReady("\n".join(found))


def _python() -> Iterator[str]:
    if sys.version_info < PYTHON:
        now = sys.version.split()[0]
        yield f"Python {now} is too old: 3.11 or newer is needed; name one with `make demo PYTHON=...`"


def _packages() -> Iterator[str]:
    missing = [package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        yield (
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed in {sys.prefix}; "
            "`make demo` installs everything, or pip install -c constraints.txt -e '.[pipeline,training]'"
        )


def _disk() -> Iterator[str]:
    folder = next(path for path in (home(), *home().parents) if path.exists())
    free = shutil.disk_usage(folder).free / 2**30
    if free < NEEDED_GIB:
        yield (
            f"{folder} has {free:.1f} GiB free and the demo needs {NEEDED_GIB:g}; "
            "make room, or set SCALEUP_HOME to a folder on another disk"
        )


def _ports(wanted: dict[str, int]) -> Iterator[str]:
    if len(set(wanted.values())) < len(wanted):
        yield f"Airflow and MLflow cannot both listen on port {next(iter(wanted.values()))}; choose two"
    for variable, port in wanted.items():
        if not ports.is_free(port):
            yield (
                f"port {port} is taken by {ports.holder(port)}; end that, "
                f"or choose another port: make demo {variable}={port + 1}"
            )


def end_leftovers() -> list[str]:
    """End services that a killed demo left behind in this home; return their names. Only for who holds the lock."""
    left = [running for running in process.all_recorded() if running.members()]
    process.stop(process.all_recorded())
    return [running.name for running in left]
