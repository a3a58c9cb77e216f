"""The leave to go up: the hand-over checkpoint proven sound, kept in the store and pinned; by whom, and why."""

from __future__ import annotations

import time
from typing import Any

from tasks import hand_over, promoted, tracking
from tasks.errors import GateFailed, StageRefused
from tasks.launch import job_of, launcher_of, lift_cause
from tasks.run import plan_of
from tasks.signing import sealed
from tasks.stage_dir import StageDir, read_json, write_json


def promote(stage: StageDir) -> dict[str, Any]:
    """Promote a stage whose verdict is PASS; a second call returns the first one's promotion."""
    with stage.locked("promote"):
        known = read_json(stage.promotion)
        if known is not None:
            return known
        verdict = read_json(stage.verdict)
        if verdict is None or verdict.get("outcome") != "PASS":
            said = "has no verdict" if verdict is None else f"has the verdict {verdict.get('outcome')}"
            run = stage.run
            raise GateFailed(
                f"{stage.name} {said}; only PASS promotes. A person may decide otherwise: "
                f'scaleup promote {run.experiment}/{run.run_id} {stage.name} --because "..."'
            )
        count = len(verdict["checks"])
        return _promote(stage, by="gates", because=f"all {count} checks passed", person=None)


def override(stage: StageDir, because: str, by: str) -> dict[str, Any]:
    """Promote by a person's word where a gate said no; if it said so before the training's end, grant leave to train.

    The checkpoint is proven whole all the same. Returns ``promotion.json`` or ``leave.json``, as it was written.
    """
    if not because.strip():
        raise StageRefused(f'say why {stage.name} is to be promoted: --because "..."; the report will name you and it')
    with stage.locked("promote"):
        known = read_json(stage.promotion)
        if known is not None:
            return known
        decided = plan_of(stage)
        job = job_of(stage)
        if job is None or (read_json(stage.cause) or {}).get("cause") in ("gate", "live"):
            return _leave(stage, because, by)
        state = launcher_of(decided).poll(job)
        if state.state in ("queued", "running", "unknown"):
            raise StageRefused(f"{stage.name} is not over ({state.state}); promote it when its job has ended")
        return _promote(stage, by="person", because=because, person=by)


def _leave(stage: StageDir, because: str, by: str) -> dict[str, Any]:
    """Record a person's leave where the forecast, an early gate or a live rule stood against the stage."""
    against = (read_json(stage.forecast) or {}).get("outcome", "PASS") != "PASS" or stage.cause.exists()
    if not against:
        raise StageRefused(f"nothing stands against {stage.name}: neither its forecast nor an early gate refused it")
    record = {"by": "person", "person": by, "because": because, "time": time.time(), "kind": "leave"}
    write_json(stage.leave, record)
    lift_cause(stage)
    return record


def _promote(stage: StageDir, *, by: str, because: str, person: str | None) -> dict[str, Any]:
    decided = plan_of(stage)
    found = hand_over.checkpoint(stage, decided)
    evaluated = hand_over.evaluated(stage, decided, found)
    settings = decided.cluster.store.settings()
    stored, places = promoted.store(stage, settings, found)
    checkpoint = {
        **stored, "manifest_sha256": found.digest, "step": found.step, "tokens": found.tokens,
        "purpose": found.purpose, "bytes": found.bytes, "entry": found.extra.get("entry"), "evaluated": evaluated,
    }  # fmt: skip
    record = {
        "by": by, "because": because, "person": person, "kind": "rehearsal" if decided.emulated else "real",
        "stage": stage.name, "time": time.time(), "checkpoint": checkpoint,
        "verdict": (read_json(stage.verdict) or {}).get("outcome"),
    }  # fmt: skip
    record = sealed(record, settings.key_file)
    promoted.pin(stage, places, record)
    write_json(stage.promotion, record)
    tracking.sync(stage.run)
    return record
