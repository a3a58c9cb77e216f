"""MLflow follows the folders: one parent run a run, one child run a stage, each step once.

Everything is read from the stage folders and shipped from the pipeline's side, so MLflow being down delays its pages
and fails nothing; the next :func:`sync` goes on where the last one stopped. ``tracking.json`` says what was shipped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tasks.errors import ScaleupError
from tasks.stage_dir import RunDir, StageDir, read_json
from tasks.tracking import summary

if TYPE_CHECKING:
    from tasks.tracking.server import Server

_LIVE_SECONDS = 3.0  # a tag costs MLflow a few milliseconds and a reader looks no more often
_FIRST_WAIT, _LONGEST_WAIT = 5.0, 60.0  # seconds until a server that did not answer is asked again


@dataclass(frozen=True)
class Synced:
    """What a sync came to: whether something still waits to be shipped, why, and where the run can be seen."""

    pending: bool
    reason: str
    run_url: str | None


@dataclass
class _Look:
    """What this process remembers of a run between two syncs."""

    seen: tuple[Any, ...] = ()
    verified: bool = False
    retry_at: float = 0.0
    wait: float = _FIRST_WAIT
    reason: str = ""
    live: dict[str, float] = field(default_factory=dict)  # stage -> when its live tags were sent


_looks: dict[tuple[Path, str], _Look] = {}
_servers: dict[str, Server] = {}


def sync(run: RunDir) -> Synced:
    """Ship everything of ``run`` that MLflow does not have yet; cheap where nothing is new; never raises."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        return Synced(False, "MLFLOW_TRACKING_URI is not set, so nothing is tracked", None)
    look = _looks.setdefault((run.path, uri), _Look())
    if time.monotonic() < look.retry_at:
        return Synced(True, look.reason, run_url(run))
    try:
        seen = _state_of_files(run)
        if seen == look.seen:
            return Synced(False, "", run_url(run))
        with _locked(run):
            complete = _Shipment(run, uri, look).ship()
        look.seen = seen if complete else ()
        look.wait = _FIRST_WAIT
        return Synced(False, "", run_url(run))
    except Exception as error:  # tracking may delay, but must not fail a run: the reason is handed on instead
        look.verified = False
        look.reason = f"MLflow at {uri} does not take the run: {_first_line(error)}"
        look.retry_at = time.monotonic() + look.wait
        look.wait = min(2 * look.wait, _LONGEST_WAIT)
        return Synced(True, look.reason, run_url(run))


def run_url(run: RunDir) -> str | None:
    """Return the address of the run's page in MLflow, once it exists there and the server has pages."""
    state = _read_state(run.tracking)
    base = _pages(state)
    return f"{base}/experiments/{state['experiment_id']}/runs/{state['run_id']}" if base else None


def stage_url(stage: StageDir) -> str | None:
    """Return the address of the stage's page in MLflow, once it exists there."""
    parent, state = _read_state(stage.run.tracking), _read_state(stage.tracking)
    base = _pages(parent)
    return f"{base}/experiments/{parent['experiment_id']}/runs/{state['run_id']}" if base and state else None


def compare_url(run: RunDir) -> str | None:
    """Return the address of MLflow's own page that compares the stages of the run: parameters, summary metrics."""
    query = _stages_query(run)
    return f"{_pages(_read_state(run.tracking))}/compare-runs?{query}" if query else None


def curves_url(run: RunDir, metric: str = "curves/loss") -> str | None:
    """Return the address of MLflow's page with one curve of all stages on one token axis."""
    query = _stages_query(run)
    if query is None:
        return None
    chosen = f"metric={_json(metric)}&plot_metric_keys={_json([metric])}&x_axis=step"
    return f"{_pages(_read_state(run.tracking))}/metric?{query}&{chosen}"


def registered(stage: StageDir) -> dict[str, Any] | None:
    """Return the model version that the stage's promotion became: name, version, alias, source; None before that."""
    version = _read_state(stage.tracking).get("version")
    return dict(version) if version else None


def server_at(uri: str) -> Server:
    """Return the client of a server, one a process; nothing is asked of it yet."""
    if uri not in _servers:
        from tasks.tracking.server import Server

        _servers[uri] = Server(uri)
    return _servers[uri]


class _Shipment:
    """One sync of one run, under its lock."""

    def __init__(self, run: RunDir, uri: str, look: _Look) -> None:
        self.run, self.uri, self.look = run, uri, look
        self.state = _read_state(run.tracking)

    @property
    def server(self) -> Server:
        """The client, made only once something must be said to the server (loading mlflow takes seconds)."""
        return server_at(self.uri)

    def ship(self) -> bool:
        """Ship the run and its stages; return whether nothing was left for a later look."""
        from tasks.tracking.stage import StageShipment

        begun = summary.stages(self.run)
        if not begun and not self.run.info.exists():
            return True
        self._settle_run()
        complete = True
        for stage in begun:
            shipment = StageShipment(stage, self.server, self.state["experiment_id"], self.state["run_id"])
            complete &= shipment.ship(self.look.live)
        self._ship_parent()
        return complete

    def _settle_run(self) -> None:
        """Find the parent run, or make it; where the server is another one, what it lacks is shipped anew."""
        if self.look.verified:
            return
        state, server = self.state, self.server
        if not (state.get("uri") == self.uri and state.get("run_id") and server.has_run(state["run_id"])):
            key = self._key()
            experiment = server.experiment(self._experiment())
            found = server.find_run(experiment, key)
            if found is None or found != state.get("run_id"):
                for path in self.run.path.glob("*/tracking.json"):
                    path.unlink()
                state = {}
            if found is None:
                found = server.create_run(experiment, self.run.run_id, key, summary.opened(self.run))
            self.state = {**state, "uri": self.uri, "experiment_id": experiment, "run_id": found}
            _write_state(self.run.tracking, self.state)
        self.look.verified = True

    def _experiment(self) -> str:
        """Return the MLflow experiment of the run: that of its name, but nights stand apart from ladders."""
        origin = (read_json(self.run.info) or {}).get("origin") or {}
        return f"nightly runs of {self.run.experiment}" if origin.get("night") else self.run.experiment

    def _key(self) -> dict[str, str]:
        """Return the tags that name this run and no other, nor one of the same second from another machine."""
        key = {"scaleup.run": f"{self.run.experiment}/{self.run.run_id}"}
        opened = (read_json(self.run.info) or {}).get("started")
        return key if opened is None else key | {"scaleup.opened": str(opened)}

    def _ship_parent(self) -> None:
        tags = summary.run_tags(self.run, compare_url(self.run))
        state = dict(self.state)
        ship_tags(self.server, state, tags)
        ship_files(self.server, state, (self.run.recipe, self.run.info, self.run.report_html))
        ship_status(self.server, state, summary.run_status(self.run), self._ended())
        if state != self.state:
            self.state = state
            _write_state(self.run.tracking, state)

    def _ended(self) -> int | None:
        return max((m for m in map(summary.ended, summary.stages(self.run)) if m), default=None)


def ship_tags(server: Server, state: dict[str, Any], tags: Mapping[str, str]) -> None:
    """Store the tags that ``state`` does not already name as stored."""
    new = {name: value for name, value in tags.items() if state.get("tags", {}).get(name) != value}
    if new:
        server.store(state["run_id"], tags=new)
        state["tags"] = {**state.get("tags", {}), **new}


def ship_files(server: Server, state: dict[str, Any], paths: tuple[Path, ...]) -> None:
    """Store the files that are new or changed, by digest."""
    for path in paths:
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except FileNotFoundError:
            continue
        if state.get("files", {}).get(path.name) != digest:
            server.store_file(state["run_id"], path)
            state["files"] = {**state.get("files", {}), path.name: digest}


def ship_status(server: Server, state: dict[str, Any], status: str, ended: int | None) -> None:
    """Tell MLflow the state of a run, where it changed."""
    if state.get("status", "RUNNING") != status:
        server.set_status(state["run_id"], status, None if status == "RUNNING" else ended)
        state["status"] = status


@contextmanager
def _locked(run: RunDir) -> Iterator[None]:
    """Hold the run's lock: two syncs at once would both look for a run, find none, and make two."""
    with (run.path / ".tracking.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _state_of_files(run: RunDir) -> tuple[Any, ...]:
    """Return size and time of all that is shipped; equal to the last one where nothing is new."""
    found: list[tuple[Any, ...]] = [(str(s.path), summary.is_over(s)) for s in summary.stages(run)]
    for folder in (run.path, *(s.path for s in summary.stages(run))):
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file() and entry.name.endswith((".json", ".jsonl", ".html")) and entry.name[0] != ".":
                    stat = entry.stat()
                    found.append((entry.path, stat.st_size, stat.st_mtime_ns))
    return tuple(sorted(f for f in found if not f[0].endswith(("tracking.json", "watch.json", "live.json"))))


def _read_state(path: Path) -> dict[str, Any]:
    """Return what was shipped; of a broken file nothing, since all can be found again by its tags on the server."""
    try:
        return read_json(path) or {}
    except ScaleupError:
        return {}


def _write_state(path: Path, state: Mapping[str, Any]) -> None:
    from tasks.stage_dir import write_json

    write_json(path, state)


def _pages(state: Mapping[str, Any]) -> str | None:
    uri = os.environ.get("MLFLOW_TRACKING_URI") or str(state.get("uri", ""))
    return f"{uri.rstrip('/')}/#" if state.get("run_id") and uri.startswith("http") else None


def _stages_query(run: RunDir) -> str | None:
    parent = _read_state(run.tracking)
    known = [s for s in (_read_state(stage.tracking) for stage in summary.stages(run)) if s]
    # A stage that was refused has no numbers, and MLflow then draws only what all have: nothing.
    ids = [s["run_id"] for s in known if s.get("summary")] or [s["run_id"] for s in known]
    if not _pages(parent) or not ids:
        return None
    return f"runs={_json(ids)}&experiments={_json([parent['experiment_id']])}"


def _json(value: Any) -> str:
    return quote(json.dumps(value, separators=(",", ":")), safe="")


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__
