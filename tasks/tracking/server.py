"""The MLflow server as tracking sees it: the only file that imports mlflow, once a process and only when needed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tasks.tracking.curves import Point

# MLflow's own defaults (120 s, 7 retries: about four minutes) would hold a look at a running stage; and a creation
# that is retried after a time-out may make two runs, where our own next look first searches for the one it made.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_METRICS_A_CALL = 1000
_TAGS_A_CALL = 100
_LONGEST_PARAM = 6000
_KIND = "scaleup.promotion_kind"


class Server:
    """A narrow client: find or create runs, store points, tags, files and model versions."""

    def __init__(self, uri: str) -> None:
        """Load mlflow (about two seconds) for the server at ``uri``; nothing is called yet."""
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.ERROR)
        self.uri = uri
        self._client: Any = MlflowClient(tracking_uri=uri, registry_uri=uri)

    def experiment(self, name: str) -> str:
        """Return the id of the experiment called ``name``; one that was deleted in the UI is brought back."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            # Without the kind, MLflow 3 opens the experiment among its pages for language-model traces.
            return str(self._client.create_experiment(name, tags={"mlflow.experimentKind": "custom_model_development"}))
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def find_run(self, experiment_id: str, tags: Mapping[str, str]) -> str | None:
        """Return the id of the oldest run that carries all ``tags``."""
        query = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        found = self._client.search_runs([experiment_id], query, max_results=1, order_by=["attributes.start_time ASC"])
        return str(found[0].info.run_id) if found else None

    def runs(self, experiment_id: str, tag: str) -> list[tuple[str, Mapping[str, str], Mapping[str, float]]]:
        """Return id, tags and newest metrics of every run that carries a tag, whatever its value."""
        found: list[tuple[str, Mapping[str, str], Mapping[str, float]]] = []
        page = None
        while True:
            query = f"tags.`{tag}` LIKE '%'"
            some = self._client.search_runs([experiment_id], query, max_results=1000, page_token=page)
            found += [(str(run.info.run_id), dict(run.data.tags), dict(run.data.metrics)) for run in some]
            page = some.token
            if not page:
                return found

    def create_run(self, experiment_id: str, name: str, tags: Mapping[str, str], began: int) -> str:
        """Create a run that began at ``began`` (ms) and return its id."""
        run = self._client.create_run(experiment_id, start_time=began, tags=dict(tags), run_name=name)
        return str(run.info.run_id)

    def has_run(self, run_id: str) -> bool:
        """Say whether the server still knows the run and it is not deleted."""
        from mlflow.exceptions import MlflowException

        try:
            return str(self._client.get_run(run_id).info.lifecycle_stage) == "active"
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise

    def store(
        self,
        run_id: str,
        *,
        points: Sequence[Point] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Store points (1000 a call), parameters and tags of one run."""
        from mlflow.entities import Metric, Param, RunTag

        metrics = [Metric(p.key, p.value, p.time, p.tokens) for p in points]
        given = [Param(name, value[:_LONGEST_PARAM]) for name, value in (params or {}).items()]
        labels = [RunTag(name, value) for name, value in (tags or {}).items()]
        for params_part in _parts(given, _TAGS_A_CALL):
            self._client.log_batch(run_id, params=params_part)
        for tags_part in _parts(labels, _TAGS_A_CALL):
            self._client.log_batch(run_id, tags=tags_part)
        for part in _parts(metrics, _METRICS_A_CALL):
            self._client.log_batch(run_id, metrics=part)

    def store_file(self, run_id: str, path: Path) -> None:
        """Store a small file as an artifact of the run."""
        self._client.log_artifact(run_id, str(path))

    def set_status(self, run_id: str, status: str, ended: int | None) -> None:
        """Set a run's state (RUNNING, FINISHED, FAILED, KILLED) and, where it ended, when (ms)."""
        if ended is None:
            self._client.update_run(run_id, status=status)
        else:
            self._client.set_terminated(run_id, status=status, end_time=ended)

    def register(self, name: str, source: str, run_id: str, *, tags: Mapping[str, str], alias: str) -> dict[str, str]:
        """Return version, alias and source of model ``name`` for ``source``: made once, nothing uploaded.

        A rehearsal's version never takes the alias from a real one.
        """
        self._registered_model(name)
        known = self._client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
        version = next((str(v.version) for v in known if v.source == source), None)
        if version is None:
            made = self._client.create_model_version(name, source, run_id=run_id, tags=dict(tags), await_creation_for=0)
            version = str(made.version)
        else:
            for key, value in tags.items():
                self._client.set_model_version_tag(name, version, key, value)
        if tags[_KIND] == "rehearsal" and self._alias_is_real(name, alias):
            alias = f"{alias}_rehearsal"
        self._client.set_registered_model_alias(name, alias, version)
        return {"version": version, "alias": alias, "source": source}

    def _alias_is_real(self, name: str, alias: str) -> bool:
        model = self._client.get_registered_model(name)
        if alias not in model.aliases:
            return False
        return bool(self._client.get_model_version_by_alias(name, alias).tags.get(_KIND) == "real")

    def _registered_model(self, name: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(
                name, description="Checkpoints that were promoted, by reference: the store holds the files."
            )
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise


def _parts(items: Iterable[Any], size: int) -> Iterable[list[Any]]:
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part
