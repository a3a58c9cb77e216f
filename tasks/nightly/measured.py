"""What a finished run of a case says: its series, and the class of hardware and environment that they hold for."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import os
import platform
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tasks.config.launchers import SlurmConfig
from tasks.errors import ScaleupError
from tasks.nightly import points
from tasks.nightly.points import Point
from tasks.stage_dir import StageDir, read_json, write_whole

if TYPE_CHECKING:
    from tasks.plan import StagePlan
    from tasks.records import Metrics

_SPEED, _LOSS, _MEMORY = "tokens_per_gpu_second", "held_out_loss", "memory_gib"
_START, _STALL, _RECOVERY = "startup_seconds", "checkpoint_stall_seconds", "recovery_seconds"


def point_of(case: str, night: str, attempt: int, stage: StageDir, started: float | None, failed: str = "") -> Point:
    """Return the point of a stage that is over; without values, and with the reason, where it shows no speed.

    ``started`` is when its job began to run, in seconds since the epoch; None: when it was submitted.
    """
    from tasks.run import plan_of

    decided, info = plan_of(stage), read_json(stage.run.info) or {}
    submitted = float((read_json(stage.job) or {}).get("submitted") or info["started"])
    values: dict[str, float] = {}
    natures: dict[str, str] = {}
    fingerprint = ""
    if not failed:
        try:
            values, natures, fingerprint = _series(stage, started or submitted)
        except ScaleupError as error:
            failed = " ".join(str(error).split())
    return Point(
        case=case, night=night, attempt=attempt, hardware=hardware(decided), environment=environment(decided),
        values=values, natures=natures, tokens=decided.tokens_last, run=f"{stage.run.experiment}/{stage.run.run_id}",
        commit=str(info.get("commit") or ""), packages=packages(), fingerprint=fingerprint, host=platform.node(),
        verdict=str((read_json(stage.verdict) or {}).get("outcome") or ""), seconds=time.time() - submitted,
        time=time.time(), failed=failed,
    )  # fmt: skip


def _series(stage: StageDir, started: float) -> tuple[dict[str, float], dict[str, str], str]:
    """Return values and natures by series, and the fingerprint of the data."""
    from tasks import noise
    from tasks.records import read_metrics

    repeat, metrics = noise.repeat_of(stage), read_metrics(stage.metrics)
    found: dict[str, float | None] = {
        _SPEED: repeat.speed.value,
        _MEMORY: _greatest(metrics.steps["memory_gib"]),
        _LOSS: repeat.loss,
        _START: _until_first_step(metrics, started),
        _STALL: _mean(metrics.checkpoints["stall_seconds"]) if "stall_seconds" in metrics.checkpoints else None,
        _RECOVERY: _longest_gap(stage) if metrics.attempts > 1 else None,
    }
    said = metrics.header.get("fields") or {}
    natures = {_SPEED: noise.natures(stage)["launch_sd"], _MEMORY: said.get("memory_gib", "unknown")}
    natures |= {_LOSS: said.get("loss", "unknown")} | dict.fromkeys((_START, _STALL, _RECOVERY), "measured")
    values = {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}
    return values, {name: str(natures[name]) for name in values}, str(metrics.header.get("fingerprint") or "")


def _greatest(column: Any) -> float | None:
    return float(column.max()) if column.notna().any() else None


def _mean(column: Any) -> float | None:
    return float(column.mean()) if column.notna().any() else None


def _until_first_step(metrics: Metrics, started: float) -> float | None:
    """Return the seconds from the job's start to the end of its first step."""
    ends = metrics.steps["time"].dropna()
    return float(ends.min()) - started if len(ends) else None


def _longest_gap(stage: StageDir) -> float | None:
    """Return the longest time from the last step of one attempt to the first of the next."""
    from tasks.records import follow

    steps = [row for row in follow(stage.metrics, 0)[0] if row.get("kind", "step") == "step" and row.get("time")]
    gaps = [
        float(after["time"]) - float(before["time"])
        for before, after in pairwise(steps)
        if int(after["step"]) <= int(before["step"])
    ]
    return max(gaps, default=None)


def hardware(decided: StagePlan) -> str:
    """Return the class of machines: cluster, GPUs, and for emulated ones the machine whose processes stand for them."""
    cluster = decided.cluster
    if cluster.emulated:
        machine = f"{os.cpu_count()} {platform.machine()} cores"
        return f"{cluster.name}, {decided.gpus} emulated GPUs on {machine}"
    place = f", partition {cluster.launcher.partition}" if isinstance(cluster.launcher, SlurmConfig) else ""
    return f"{cluster.name}{place}, {decided.gpus} GPUs"


def environment(decided: StagePlan) -> str:
    """Return the class of software: kind and image without its digest, and the Python where it is this one.

    Versions of packages are no class of their own: a bump that makes training slower must be seen, not start a series.
    """
    around = decided.cluster.environment
    image = f" {around.image.partition('@')[0].rpartition(':')[0] or around.image}" if around.image else ""
    own = f", Python {platform.python_version().rpartition('.')[0]}" if around.kind == "none" else ""
    return f"{around.kind}{image}{own}"


def packages() -> str:
    """Return the digest of all installed distributions, and keep their list under it for a later comparison."""
    names = sorted({f"{one.name}=={one.version}" for one in importlib.metadata.distributions()})
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
    kept = points.folder() / "packages" / f"{digest}.txt"
    if not kept.exists():
        write_whole(kept, "\n".join(names) + "\n")
    return digest
