"""MLflow's tracking server: SQLite, one worker, 127.0.0.1, nothing sent home."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tasks.services.ports import HOST
from tasks.services.process import Service
from tasks.stage_dir import home

REPOSITORY = Path(__file__).resolve().parent.parent.parent
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def url(port: int) -> str:
    """Return the address for people and for ``MLFLOW_TRACKING_URI``."""
    return f"http://{HOST}:{port}"


def quiet() -> dict[str, str]:
    """Return the variables that keep MLflow, server or client, from telemetry and from side processes."""
    return {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        # Its job runner leaves six consumers behind that nobody here needs.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


def service(port: int) -> Service:
    """Return the MLflow server as a service on ``port``."""
    command = (sys.executable, "-m", "tasks.services.mlflow_main", str(port))
    environment = {
        **os.environ,
        **quiet(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])),
        "SCALEUP_HOME": str(home()),
    }
    return Service("mlflow", command, environment, lambda since: _answers(port), port)


def _answers(port: int) -> bool:
    try:
        with _OPENER.open(f"{url(port)}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
