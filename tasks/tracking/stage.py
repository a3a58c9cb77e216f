"""One stage's child run: parameters, curves, summary metrics, tags, files, and the model version of its promotion."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tasks.stage_dir import StageDir, read_json, write_json
from tasks.tracking import _LIVE_SECONDS, _read_state, ship_files, ship_status, ship_tags, summary
from tasks.tracking.curves import Marker, Point, next_batch
from tasks.tracking.params import params

if TYPE_CHECKING:
    from tasks.tracking.server import Server


class StageShipment:
    """What one sync does for one stage. ``tracking.json`` is written after each thing that the server stored."""

    def __init__(self, stage: StageDir, server: Server, experiment_id: str, parent: str) -> None:
        """Find the stage's child run by its key, or make it."""
        self.stage, self.server = stage, server
        self.state = _read_state(stage.tracking)
        if "run_id" not in self.state:
            tags = {"scaleup.stage_key": f"{stage.run.run_id}/{stage.name}", "mlflow.parentRunId": parent}
            began = summary.began(stage)
            found = server.find_run(experiment_id, tags)
            self.state["run_id"] = found or server.create_run(experiment_id, stage.name, tags, began)
            self.state["began"] = began
            self._keep()

    def ship(self, live: dict[str, float]) -> bool:
        """Ship what is new; return False where live progress was held back for a moment."""
        self._params()
        complete = self._curves(live)
        self._summary()
        ship_tags(self.server, self.state, summary.stage_tags(self.stage))
        stage = self.stage
        ship_files(self.server, self.state, (stage.config, stage.forecast, stage.verdict, stage.report_html))
        self._version()
        ship_status(self.server, self.state, summary.stage_status(stage), summary.ended(stage))
        self._keep()
        return complete

    def _keep(self) -> None:
        if self.state != read_json(self.stage.tracking):
            write_json(self.stage.tracking, self.state)

    def _params(self) -> None:
        # MLflow refuses a parameter's second value; what an amended recipe changes stands in config.json.
        new = {k: v for k, v in params(self.stage).items() if k not in self.state.get("params", {})}
        if new:
            self.server.store(self.state["run_id"], params=new)
            self.state["params"] = {**self.state.get("params", {}), **new}
            self._keep()

    def _curves(self, live: dict[str, float]) -> bool:
        config = read_json(self.stage.config)
        if config is None:
            return True
        spans = [s for s in config["spans"] if s["phase"] not in ("replay", "probe")] or config["spans"]
        batch = next_batch(
            self.stage.metrics,
            Marker.from_json(self.state.get("curves")),
            planned_steps=sum(s["steps"] for s in spans),
            first_step=spans[0]["first_step"],
            over=summary.is_over(self.stage),
            began=self.state["began"],
        )
        if batch.points:
            self._summary()  # before the first curve, since MLflow's compare page draws what came first
            self.server.store(self.state["run_id"], points=batch.points)
            self.state["curves"] = batch.marker.to_json()
            self._keep()
        return self._progress(batch.newest, live)

    def _progress(self, newest: Mapping[str, Any] | None, live: dict[str, float]) -> bool:
        """Tag the newest step, which is not final and so on no curve yet; at most every few seconds."""
        if newest is None:
            return True
        over, now = summary.is_over(self.stage), time.monotonic()
        if not over and now - live.get(self.stage.name, -_LIVE_SECONDS) < _LIVE_SECONDS:
            return False
        live[self.stage.name] = now
        tags = {"scaleup.step": str(newest["step"]), "scaleup.loss": f"{newest.get('loss')}"}
        ship_tags(self.server, self.state, tags)
        return True

    def _summary(self) -> None:
        """Store the summary metrics when the first points come and when the stage is over, not at every look."""
        verdict, over = read_json(self.stage.verdict), summary.is_over(self.stage)
        basis = "judged" if verdict else "over" if over else "begun"
        if not self.stage.metrics.exists() or basis == self.state.get("summary_basis"):
            return
        values, tokens, moment = summary.metrics(self.stage)
        if not values:
            return
        stored = self.state.get("summary", {})
        points = [Point(k, v, moment, tokens) for k, v in values.items() if stored.get(k) != [v, tokens]]
        self.server.store(self.state["run_id"], points=points)
        self.state["summary"] = stored | {p.key: [p.value, p.tokens] for p in points}
        self.state["summary_basis"] = basis
        self._keep()

    def _version(self) -> None:
        """Register the promoted checkpoint by reference: the registry says where it is, the store holds its bytes."""
        promotion = read_json(self.stage.promotion)
        checkpoint = (promotion or {}).get("checkpoint") or {}
        if promotion is None or not checkpoint.get("path"):
            return
        kind = str(promotion.get("kind", "rehearsal"))
        config = read_json(self.stage.config) or {}
        tags = {
            "scaleup.run": f"{self.stage.run.experiment}/{self.stage.run.run_id}",
            "scaleup.stage": self.stage.name,
            "scaleup.gpus": str(config.get("gpus", "")),
            "scaleup.step": str(checkpoint.get("step", "")),
            "scaleup.manifest_sha256": str(checkpoint.get("manifest_sha256", "")),
            "scaleup.promotion_kind": kind,
            "scaleup.promoted_by": summary.promoter(promotion),
            "scaleup.because": str(promotion.get("because", "")),
        }
        if self.state.get("version", {}).get("tags") == tags:
            return
        version = self.server.register(
            self.stage.run.experiment,
            _source(str(checkpoint["path"])),
            self.state["run_id"],
            tags=tags,
            alias=self.stage.name,
        )
        self.state["version"] = {"name": self.stage.run.experiment, **version, "tags": tags}
        self._keep()


def _source(path: str) -> str:
    """Return the reference to a checkpoint in the store.

    MLflow takes a plain path or ``file:`` address only inside its own artifact folder, and copies nothing for any other
    scheme; so a folder is named ``store:///...`` and S3 by its own address.
    """
    return path if "://" in path else f"store://{path}"
