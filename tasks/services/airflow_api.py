"""Airflow's REST API v2, as far as the demo and the tests ask it; standard library only."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.errors import ScaleupError

# Proxies of the environment are for the outside; these calls stay on this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_TIMEOUT_SECONDS = 60.0


class AirflowUnreachable(ScaleupError):
    """Airflow's API server did not answer; it may be starting again."""


class AirflowRefused(ScaleupError):
    """Airflow's API server answered with an error."""


def fetch(
    url: str,
    body: Mapping[str, Any] | None = None,
    method: str | None = None,
    token: str = "",
    timeout: float = _TIMEOUT_SECONDS,
) -> Any:
    """Send one request, JSON in and out; raise :class:`AirflowUnreachable` or :class:`AirflowRefused`."""
    data = json.dumps(body).encode() if body is not None else None
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, data=data, headers=headers, method=method)  # noqa: S310  # our own http URL
    try:
        with _OPENER.open(request, timeout=timeout) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        detail = error.read().decode(errors="replace")[:500]
        raise AirflowRefused(f"{error.code} from {method or 'GET'} {url}: {detail}") from error
    except (OSError, TimeoutError) as error:  # URLError is an OSError
        raise AirflowUnreachable(f"{url}: {error}") from error
    return json.loads(text) if text else None


@dataclass
class AirflowApi:
    """One Airflow, spoken to as one user; logs in by itself, and again where the token has run out."""

    base: str
    user: str
    password: str
    timeout: float = _TIMEOUT_SECONDS
    _token: str = field(default="", repr=False)

    def call(self, path: str, body: Mapping[str, Any] | None = None, method: str | None = None) -> Any:
        """Call ``/api/v2`` + ``path``."""
        if not self._token:
            self._log_in()
        url = f"{self.base}/api/v2{path}"
        try:
            return fetch(url, body, method, self._token, self.timeout)
        except AirflowRefused as error:
            if not str(error).startswith("401"):
                raise
        self._log_in()
        return fetch(url, body, method, self._token, self.timeout)

    def _log_in(self) -> None:
        known = {"username": self.user, "password": self.password}
        answer = fetch(f"{self.base}/auth/token", known, timeout=self.timeout)
        self._token = str(answer["access_token"])

    def has_dag(self, dag_id: str, since: float = 0.0) -> bool:
        """Say whether the DAG processor has found the DAG, in its file as it was at ``since`` or later."""
        try:
            found = self.call(f"/dags/{dag_id}")
        except AirflowRefused as error:
            if str(error).startswith("404"):
                return False
            raise
        return _seconds(found["last_parsed_time"]) >= since

    def import_errors(self) -> list[str]:
        """Return what the DAG processor could not read, as text."""
        return [str(e["stack_trace"]) for e in self.call("/importErrors")["import_errors"]]

    def unpause(self, dag_id: str) -> None:
        """Let the DAG's runs proceed."""
        self.call(f"/dags/{dag_id}", {"is_paused": False}, "PATCH")

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any]) -> None:
        """Start a DAG run with a chosen id; one that is already there stays as it is."""
        try:
            self.call(f"/dags/{dag_id}/dagRuns", {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf)})
        except AirflowRefused as error:
            if not str(error).startswith("409"):
                raise

    def state(self, dag_id: str, run_id: str) -> str:
        """Return ``queued``, ``running``, ``success`` or ``failed``."""
        return str(self.call(f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id)}")["state"])

    def unfinished(self, dag_id: str) -> dict[str, str]:
        """Return the ids of runs that are queued or running, newest first, each with its note."""
        answer = self.call(f"/dags/{dag_id}/dagRuns?state=queued&state=running&order_by=-run_after")
        return {str(run["dag_run_id"]): str(run.get("note") or "") for run in answer["dag_runs"]}

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Return the state of each task; None where it waits."""
        tasks = self.call(f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id)}/taskInstances?limit=200")
        return {str(t["task_id"]): t["state"] for t in tasks["task_instances"]}

    def mark_run_failed(self, dag_id: str, run_id: str, note: str | None = None) -> None:
        """What the button "mark as failed" of a run does: running tasks end, waiting ones never start, teardowns do."""
        body = {"state": "failed", **({"note": note} if note else {})}
        self.call(f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id)}", body, "PATCH")

    def mark_task(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """What the button "mark as ..." of a task does."""
        path = f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id)}/taskInstances/{task_id}"
        self.call(path, {"new_state": state}, "PATCH")

    def clear(self, dag_id: str, run_id: str, task_ids: list[str]) -> None:
        """What the button "clear" of tasks does, without their neighbours."""
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": task_ids, "only_failed": False}
        self.call(f"/dags/{dag_id}/clearTaskInstances", body)

    def heartbeats(self) -> dict[str, float]:
        """Return the time of the last heartbeat of ``scheduler``, ``dag_processor``, ``triggerer`` (0: never)."""
        health = fetch(f"{self.base}/api/v2/monitor/health", timeout=5)
        return {
            name: _seconds((health.get(name) or {}).get(f"latest_{name}_heartbeat"))
            for name in ("scheduler", "dag_processor", "triggerer")
        }


def _seconds(stamp: str | None) -> float:
    from datetime import datetime

    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def wait_seconds(seconds: float) -> None:
    """Pause between two looks at a service that offers nothing to wait on."""
    time.sleep(seconds)
