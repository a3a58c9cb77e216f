"""``python deploy/healthy.py SERVICE``: 0 where this container's service does its work, asked of the service itself."""

from __future__ import annotations

import base64
import configparser
import json
import os
import socket
import sys
import urllib.request
from pathlib import Path

JOBS = {"scheduler": "SchedulerJob", "dag-processor": "DagProcessorJob", "triggerer": "TriggererJob"}
STALE_SECONDS = 30
TIMEOUT_SECONDS = 8


def api_server() -> str | None:
    """Ask both parts of the API server, that of people, with the database behind it, and that of tasks.

    The second builds itself at its first question, for seconds; better now than when the first task asks it.
    """
    with urllib.request.urlopen("http://127.0.0.1:8080/execution/health", timeout=TIMEOUT_SECONDS):
        pass
    with urllib.request.urlopen("http://127.0.0.1:8080/api/v2/monitor/health", timeout=TIMEOUT_SECONDS) as answer:
        state = json.load(answer)["metadatabase"]["status"]
    return None if state == "healthy" else f"the API server finds its database {state}"


def mlflow() -> str | None:
    """Search an experiment as a user: the log-in, the server and its database have all to work."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(Path.home() / "mlflow_auth.ini")
    words = f"admin:{settings['mlflow']['admin_password'].replace('%%', '%')}"
    request = urllib.request.Request(
        "http://127.0.0.1:5000/api/2.0/mlflow/experiments/search?max_results=1",
        headers={"Authorization": "Basic " + base64.b64encode(words.encode()).decode()},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
        return None if "experiments" in json.load(answer) else "MLflow answers without experiments"


def beats(service: str) -> str | None:
    """Look for a heartbeat of this very container; to ask by `airflow jobs check` costs seconds of processor time."""
    import psycopg2

    settings = configparser.ConfigParser(interpolation=None)
    settings.read(Path(os.environ["AIRFLOW_HOME"]) / "airflow.cfg")
    address = settings["database"]["sql_alchemy_conn"].replace("%%", "%").replace("+psycopg2", "")
    database = psycopg2.connect(address, connect_timeout=TIMEOUT_SECONDS)
    with database.cursor() as cursor:
        cursor.execute(
            "SELECT EXTRACT(EPOCH FROM now() - max(latest_heartbeat)) FROM job"
            " WHERE job_type = %s AND hostname = %s AND state = 'running'",
            (JOBS[service], socket.getfqdn()),
        )
        (age,) = cursor.fetchone() or (None,)
    database.close()
    if age is None:
        return f"no heartbeat of {service} yet"
    return None if age < STALE_SECONDS else f"the last heartbeat of {service} is {age:.0f} s old"


def main(service: str) -> None:
    """Exit with 0, or with 1 and a sentence."""
    try:
        wrong = {"api-server": api_server, "mlflow": mlflow}.get(service, lambda: beats(service))()
    except Exception as error:  # whatever it is, the service is not healthy, and Docker keeps the sentence
        wrong = f"{service}: {error}"
    if wrong:
        raise SystemExit(wrong)


if __name__ == "__main__":
    main(sys.argv[1])
