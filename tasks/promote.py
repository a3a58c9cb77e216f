"""The leave to go up: the hand-over checkpoint proven whole, copied to the store and pinned; by whom, and why."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from tasks import tracking
from tasks.errors import CheckpointUnsound, GateFailed, StageRefused
from tasks.launch import job_of, launcher_of, lift_cause
from tasks.plan import StagePlan
from tasks.records import read_metrics
from tasks.run import plan_of
from tasks.stage_dir import StageDir, read_json, write_json
from training import manifest
from training.store import FolderStore, StoreError


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
        if job is None or (read_json(stage.cause) or {}).get("cause") == "gate":
            return _leave(stage, because, by)
        state = launcher_of(decided).poll(job)
        if state.state in ("queued", "running", "unknown"):
            raise StageRefused(f"{stage.name} is not over ({state.state}); promote it when its job has ended")
        return _promote(stage, by="person", because=because, person=by)


def _leave(stage: StageDir, because: str, by: str) -> dict[str, Any]:
    """Record a person's leave where the forecast or an early gate stood against the stage."""
    against = (read_json(stage.forecast) or {}).get("outcome", "PASS") != "PASS" or stage.cause.exists()
    if not against:
        raise StageRefused(f"nothing stands against {stage.name}: neither its forecast nor an early gate refused it")
    record = {"by": "person", "person": by, "because": because, "time": time.time(), "kind": "leave"}
    write_json(stage.leave, record)
    lift_cause(stage)
    return record


def _promote(stage: StageDir, *, by: str, because: str, person: str | None) -> dict[str, Any]:
    decided = plan_of(stage)
    folder = _checkpoint(stage, decided)
    problems = manifest.verify(folder)
    if problems:
        raise CheckpointUnsound(f"{stage.name} cannot be promoted: {'; '.join(problems)}")
    found = manifest.read(folder)
    store = FolderStore(decided.cluster.store.root)
    key = f"{stage.run.experiment}/{stage.run.run_id}/{stage.name}/{manifest.folder_name(found.step)}"
    try:
        path = store.put(folder, key)
        store.pin(key, f"promoted by {person or by}: {because}")
    except StoreError as error:
        raise CheckpointUnsound(f"{stage.name} cannot be promoted: {error}") from error
    checkpoint = {
        "path": str(path), "key": key, "store": str(store.root), "manifest_sha256": found.digest, "step": found.step,
        "tokens": found.tokens, "purpose": found.purpose, "bytes": found.bytes, "entry": found.extra.get("entry"),
    }  # fmt: skip
    record = {
        "by": by, "because": because, "person": person, "kind": "rehearsal" if decided.emulated else "real",
        "stage": stage.name, "time": time.time(), "checkpoint": checkpoint,
        "verdict": (read_json(stage.verdict) or {}).get("outcome"),
    }  # fmt: skip
    write_json(stage.promotion, record)
    tracking.sync(stage.run)
    return record


def _checkpoint(stage: StageDir, decided: StagePlan) -> Path:
    """Return the folder of the checkpoint that this stage hands over, with a manifest; raise CheckpointUnsound."""
    purpose: manifest.Purpose = "final" if decided.hand_over_step is None else "hand_over"
    step = decided.last_step if decided.hand_over_step is None else decided.hand_over_step
    ours = [found for found in manifest.whole(stage.checkpoints) if found.step == step]
    if ours:
        return ours[-1].folder
    metrics = read_metrics(stage.metrics)
    rows = metrics.checkpoints
    theirs = rows[rows["step"] == step]
    if len(theirs):
        counted = metrics.steps[metrics.steps["step"] == step]["tokens"]
        source = stage.path / str(theirs.iloc[-1]["path"])
        if not source.exists():
            raise CheckpointUnsound(f"{stage.name}: its trainer recorded a checkpoint at {source}; nothing is there")
        tokens = int(counted.iloc[-1]) if len(counted) else decided.tokens_first
        return _with_manifest(stage, decided, source, step=step, tokens=tokens, purpose=purpose)
    there = sorted({*(found.step for found in manifest.whole(stage.checkpoints)), *rows["step"].tolist()})
    listed = f"whole are those of steps {', '.join(map(str, there))}" if there else "there is none"
    advice = (
        "" if decided.trainer.can("checkpoints") else "; trainer without the capability checkpoints hands nothing over"
    )
    raise CheckpointUnsound(f"{stage.name} has no {purpose} checkpoint of step {step}: {listed}{advice}")


def _with_manifest(
    stage: StageDir, decided: StagePlan, source: Path, *, step: int, tokens: int, purpose: manifest.Purpose
) -> Path:
    """Copy a foreign trainer's checkpoint, a file or a folder, beside a manifest that we write for it.

    The copy is kept: a promotion that is killed and repeated must find the same manifest, its time stamp included.
    """
    final = stage.hand_over / manifest.folder_name(step)
    if final.exists() and not manifest.verify(final):
        return final
    stage.hand_over.mkdir(exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=stage.hand_over, prefix=f".{final.name}."))
    try:
        if source.is_dir():
            shutil.copytree(source, draft, dirs_exist_ok=True)
        else:
            shutil.copy2(source, draft / source.name)
        manifest.write(
            draft,
            step=step,
            tokens=tokens,
            purpose=purpose,
            world=decided.gpus,
            config_digest=manifest.digest_of(read_json(stage.config) or {}),
            extra={"trainer": decided.trainer.name, "entry": None if source.is_dir() else source.name},
        )
        draft.chmod(0o755)  # mkdtemp's own mode would keep other users of the store out
        return manifest.publish(draft, final)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
